//! Users and Unix groups, by the machine's own name service.

use std::ffi::CString;

use nix::unistd::{Gid, Group, Uid, User, getgrouplist};

/// What a user is called; its number where nobody knows.
pub(crate) fn name(uid: u32) -> String {
    let user = User::from_uid(Uid::from_raw(uid)).ok().flatten();
    user.map_or_else(
        || format!("uid {uid}"),
        |user| bonsai_units::text::escaped(&user.name).into_owned(),
    )
}

/// What ids of a user's services begin with: their name, or their number where the name has
/// letters that none of ours has, or could be taken for a number.
pub(crate) fn label(uid: u32) -> String {
    let user = User::from_uid(Uid::from_raw(uid)).ok().flatten();
    let name = user.map(|user| user.name).filter(|name| {
        bonsai_services::service::check_name(name).is_ok()
            && !name.bytes().all(|byte| byte.is_ascii_digit())
    });
    name.unwrap_or_else(|| uid.to_string())
}

/// A user by the name that ids of their services begin with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    /// The user's number.
    pub uid: u32,
    /// The number of their own group.
    pub gid: u32,
}

/// The user that ids of services beginning with `label` belong to, if there is one.
#[must_use]
pub fn owner(label: &str) -> Option<Owner> {
    let user = match label.parse::<u32>() {
        Ok(uid) => User::from_uid(Uid::from_raw(uid)),
        Err(_) => User::from_name(label),
    };
    let known = user.ok().flatten().map(|user| Owner {
        uid: user.uid.as_raw(),
        gid: user.gid.as_raw(),
    });
    // A user without a name has no group of a name either.
    let number = label.parse::<u32>().ok();
    known.or_else(|| number.map(|uid| Owner { uid, gid: uid }))
}

/// Tells whether there is a Unix group of that name.
pub(crate) fn is_group(name: &str) -> bool {
    Group::from_name(name).is_ok_and(|group| group.is_some())
}

/// Whether a user is in a group.
pub(crate) fn is_in(uid: u32, gid: u32, group: &str) -> bool {
    let Some(wanted) = Group::from_name(group).ok().flatten() else {
        return false;
    };
    if wanted.gid == Gid::from_raw(gid) {
        return true;
    }
    let user = User::from_uid(Uid::from_raw(uid)).ok().flatten();
    let groups = user.and_then(|user| {
        let name = CString::new(user.name).ok()?;
        getgrouplist(&name, user.gid).ok()
    });
    groups.is_some_and(|groups| groups.contains(&wanted.gid))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_is_root() {
        assert_eq!(name(0), "root");
        assert!(is_in(0, 0, "root"));
        assert!(!is_in(0, 0, "no-such-group-anywhere"));
        assert_eq!(name(4_000_000_000), "uid 4000000000");
        assert_eq!(label(0), "root");
        assert_eq!(label(4_000_000_000), "4000000000");
    }
}
