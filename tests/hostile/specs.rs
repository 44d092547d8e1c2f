pub const CASES: &[(&str, fn())] = &[];
