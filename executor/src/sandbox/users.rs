//! Users of an image: a name or a number becomes ids inside the sandbox.

use std::collections::BTreeMap;

use crate::broker::IDS_MAX;

/// There in every image, named in its /etc/passwd or not.
pub const ROLLOUT: &str = "rollout";
pub const ROLLOUT_ID: u32 = 1000;
/// Entries of a passwd file that are read.
const USERS_MAX: usize = 4096;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct User {
    pub uid: u32,
    pub gid: u32,
}

/// The image's table, as it was before anything ran: what a sandbox does to its own /etc/passwd
/// changes nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Users(BTreeMap<String, User>);

impl Users {
    /// Reads passwd text. Lines that are no entry, and ids outside the sandbox's range, are not
    /// users here.
    pub fn parse(passwd: &str) -> Self {
        let user = |line: &str| {
            let mut fields = line.split(':');
            let (name, _password) = (fields.next()?, fields.next()?);
            let (uid, gid) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
            let inside = !name.is_empty() && uid < IDS_MAX && gid < IDS_MAX;
            inside.then(|| (name.to_owned(), User { uid, gid }))
        };
        let mut users = BTreeMap::new();
        for (name, user) in passwd.lines().filter_map(user).take(USERS_MAX) {
            // The first entry of a name counts, as in the C library.
            users.entry(name).or_insert(user);
        }
        users.entry(ROLLOUT.to_owned()).or_insert(User { uid: ROLLOUT_ID, gid: ROLLOUT_ID });
        Self(users)
    }

    /// By name, or by decimal uid (its group is the one of its entry, else the same number).
    pub fn find(&self, user: &str) -> Option<User> {
        if let Some(known) = self.0.get(user) {
            return Some(*known);
        }
        if user.is_empty() || !user.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        let uid = user.parse().ok().filter(|uid| *uid < IDS_MAX)?;
        let known = self.0.values().find(|known| known.uid == uid);
        Some(known.copied().unwrap_or(User { uid, gid: uid }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_are_found_by_name_and_by_number_inside_the_range_only() {
        let users = Users::parse(
            "root:x:0:0::/root:/bin/sh\nbuild:x:7:8\nbuild:x:1:1\nbad\n::1:1\nfar:x:70000:1\nneg:x:-1:0\n",
        );
        let find = |name| users.find(name).map(|user| (user.uid, user.gid));
        assert_eq!(find("root"), Some((0, 0)));
        assert_eq!(find("build"), Some((7, 8)), "the first entry counts");
        assert_eq!(find("7"), Some((7, 8)));
        assert_eq!(find("rollout"), Some((1000, 1000)));
        assert_eq!(find("65534"), Some((65534, 65534)));
        for absent in ["", "nobody", "far", "neg", "-1", "+1", "65536", "4294967296", "1x", " 1"] {
            assert_eq!(find(absent), None, "{absent}");
        }
    }

    #[test]
    fn an_image_may_name_its_own_rollout() {
        let users = Users::parse("rollout:x:1234:55::/home/rollout:/bin/bash\n");
        assert_eq!(users.find("rollout"), Some(User { uid: 1234, gid: 55 }));
    }
}
