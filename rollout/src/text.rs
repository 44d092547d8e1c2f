//! Showing text that came from outside.

/// `text` made safe for a terminal, a log line and a JSON message: everything that is not
/// printable ASCII becomes a `\u{..}` escape, and at most `chars_max` characters are kept
/// (then `...`).
pub fn shown(text: &str, chars_max: usize) -> String {
    let mut out = String::with_capacity(text.len().min(chars_max) + 3);
    for (count, c) in text.chars().enumerate() {
        if count == chars_max {
            out.push_str("...");
            break;
        }
        if c == ' ' || c.is_ascii_graphic() {
            out.push(c);
        } else {
            out.extend(c.escape_unicode());
        }
    }
    out
}

/// `text` as [`shown`], on one line: a line break or a tab is a space there, and no escape.
pub fn shown_line(text: &str, chars_max: usize) -> String {
    let is_break = |c: char| matches!(c, '\n' | '\r' | '\t');
    if !text.contains(is_break) {
        return shown(text, chars_max);
    }
    let parts: Vec<&str> = text.split(is_break).filter(|part| !part.is_empty()).collect();
    shown(&parts.join(" "), chars_max)
}

/// Whether text with this character does not read as it is: a control, a line break, or a sign
/// that turns or hides what stands beside it.
pub fn is_deceptive(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
}

/// The name of `known` nearest to `given`, if it is within two edits.
pub fn nearest<'a>(given: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    if given.len() > 256 {
        return None;
    }
    known
        .into_iter()
        .map(|candidate| (edit_distance(given, candidate), candidate))
        .filter(|&(distance, _)| distance <= 2 && distance < given.chars().count())
        .min()
        .map(|(_, candidate)| candidate)
}

/// Optimal string alignment distance (insert, delete, replace, swap neighbours).
fn edit_distance(a: &str, b: &str) -> usize {
    let a: Vec<char> = a.chars().collect();
    let b: Vec<char> = b.chars().collect();
    if a.len().abs_diff(b.len()) > 2 {
        return usize::MAX;
    }
    let mut before: Vec<usize> = Vec::new();
    let mut last: Vec<usize> = (0..=b.len()).collect();
    for i in 1..=a.len() {
        let mut row = vec![i; b.len() + 1];
        for j in 1..=b.len() {
            let replace = last[j - 1] + usize::from(a[i - 1] != b[j - 1]);
            row[j] = replace.min(last[j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                row[j] = row[j].min(before[j - 2] + 1);
            }
        }
        before = std::mem::replace(&mut last, row);
    }
    last[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn on_one_line_breaks_are_spaces_and_other_controls_are_escaped() {
        for (text, expected) in [
            ("a\nb\r\nc\td\n", "a b c d"),
            ("\n\n", ""),
            ("a  b\u{1b}[2J", "a  b\\u{1b}[2J"),
            ("a\n\u{85}", "a \\u{85}"),
        ] {
            assert_eq!(shown_line(text, 80), expected, "{text:?}");
        }
        assert_eq!(shown_line("ab\ncd", 4), "ab c...");
    }

    #[test]
    fn swapped_neighbours_are_one_edit() {
        assert_eq!(nearest("tiemout", ["timeout", "image"]), Some("timeout"));
        assert_eq!(nearest("imgae", ["timeout", "image"]), Some("image"));
        assert_eq!(nearest("xyz", ["timeout", "image"]), None);
    }

    #[test]
    fn characters_that_turn_hide_or_break_text_are_deceptive_and_letters_are_not() {
        assert!("\0\n\u{1b}\u{7f}\u{9b}\u{202e}\u{2028}\u{200b}\u{feff}".chars().all(is_deceptive));
        assert!(!"a b/\u{e9}\u{1f980}\u{5d0}".chars().any(is_deceptive));
    }

    #[test]
    fn control_characters_are_escaped_and_length_is_bounded() {
        assert_eq!(shown("a\u{1b}[31m", 80), "a\\u{1b}[31m");
        assert_eq!(shown("abcdef", 3), "abc...");
    }
}
