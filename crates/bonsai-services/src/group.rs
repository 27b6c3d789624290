//! Groups: services that share a rate, each with a guarantee, a ceiling and a weight.
//!
//! ```text
//! RUNTIME/.groups/NAME        of one user, mode 0600
//! /run/bonsai-groups/NAME     made by root for a Unix group, mode 0660
//! ```
//!
//! # Invariants
//! 1. The guarantees of all members are never above what the group has.
//! 2. A member's number is given back when its service leaves or ends; what was left behind
//!    by force goes to whoever needs it next.
//! 3. A service is in one group at a time.

mod join;
pub mod member;
pub mod place;
mod pool;
pub mod view;

pub use join::{
    can_join, draw_anew, is_in_pool, join, join_at_start, join_with, leave, leave_at_end, of,
};
pub use member::{Wishes, change};
pub use pool::{DAEMON_POOL, Pool, PoolMember, Share, Terms, is_of};
pub use view::{GroupView, Seen, blamed, drawn, limit_views, waiting_name};
