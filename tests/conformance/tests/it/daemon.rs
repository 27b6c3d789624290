//! The daemon: real services below it, asked by the command line and by raw requests.

mod addresses;
mod bounds;
mod capacity;
mod durable;
mod exports;
mod faults;
mod fixture;
mod floods;
mod interface;
mod killed;
mod lives;
mod machine;
mod newcomers;
mod own_limits;
mod owners;
mod scopes;
mod secure;
mod shares;
mod shipped;
mod stalls;
mod top;
mod users;
mod words;
