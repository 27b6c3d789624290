//! Groups: services that share a rate, each with a guarantee, a ceiling and a weight.
//!
//! ```text
//! RUNTIME/.groups/NAME        of one user, mode 0600
//! /run/bonsai-groups/NAME     made by root for a Unix group, mode 0660
//! ```
//!
//! # Invariants
//! 1. The guarantees of all members are never above what the group has.
//! 2. A member's number is given back when its service ends; what was left behind by
//!    force goes to whoever needs it next.

pub mod member;
pub mod place;
pub mod view;

pub use member::{Wishes, change, join, leave};
pub use view::{GroupView, Seen, blamed, drawn, limit_views, waiting_name};
