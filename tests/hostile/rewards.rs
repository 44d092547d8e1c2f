pub const CASES: &[(&str, crate::yard::Case)] = &[];
