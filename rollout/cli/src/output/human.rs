//! Lengths, sizes and grids as people read them. All text that comes in may be hostile; all text
//! that goes out is printable ASCII.

use rollout::text::shown_line;

/// The widest cell, in characters; longer text ends in `...`.
pub const CELL_CHARS_MAX: usize = 80;
/// The widest cell of the last column, which pushes nothing aside.
pub const LAST_CELL_CHARS_MAX: usize = 240;

/// `350ms`, `12.3s`, `2m05s`, `1h02m`, `3d4h`.
pub fn length(ms: u64) -> String {
    let seconds = ms / 1000;
    match seconds {
        _ if ms < 1000 => format!("{ms}ms"),
        0..60 => format!("{seconds}.{}s", ms % 1000 / 100),
        60..3600 => format!("{}m{:02}s", seconds / 60, seconds % 60),
        3600..172_800 => format!("{}h{:02}m", seconds / 3600, seconds % 3600 / 60),
        _ => format!("{}d{}h", seconds / 86_400, seconds % 86_400 / 3600),
    }
}

/// Three digits or so: `0`, `812`, `1.5Ki`, `24Gi`.
pub fn size(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["Ki", "Mi", "Gi", "Ti", "Pi"];
    let Some((unit, power)) =
        (1..=UNITS.len()).rev().map(|n| (UNITS[n - 1], 1u64 << (10 * n))).find(|(_, p)| bytes >= *p)
    else {
        return bytes.to_string();
    };
    let tenths = u128::from(bytes) * 10 / u128::from(power);
    if tenths >= 100 || tenths % 10 == 0 {
        format!("{}{unit}", tenths / 10)
    } else {
        format!("{}.{}{unit}", tenths / 10, tenths % 10)
    }
}

/// Cores: `2`, `1.5`.
pub fn cores(milli: u64) -> String {
    let text = format!("{}.{:03}", milli / 1000, milli % 1000);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// A number between large and small without noise: 0.4444, 1, 12.5.
pub fn figure(value: f64) -> String {
    let text = format!("{value:.4}");
    let short = text.trim_end_matches('0').trim_end_matches('.');
    if short == "-0" { "0".to_owned() } else { short.to_owned() }
}

/// Whole numbers with thousands separated: `16,000`.
pub fn count(value: u64) -> String {
    let digits = value.to_string();
    let mut out = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// `1 rollout`, `2 rollouts`.
pub fn plural(value: u64, noun: &str) -> String {
    format!("{} {noun}{}", count(value), if value == 1 { "" } else { "s" })
}

/// The narrowest last column that is worth wrapping; a narrower one goes below its row.
const LAST_COLUMN_CHARS_MIN: usize = 30;
/// How far in from the left what goes below a row starts.
const BELOW: usize = 4;

/// Lines of at most `columns` characters (0: no bound), broken at spaces. A longer word stays whole,
/// so that it can be copied.
pub fn wrapped(text: &str, columns: usize) -> Vec<String> {
    let mut out = Vec::new();
    for line in text.lines() {
        if columns == 0 || line.len() <= columns {
            out.push(line.to_owned());
            continue;
        }
        let mut current = String::new();
        for word in line.split(' ') {
            if !current.is_empty() && current.len() + 1 + word.len() > columns {
                out.push(std::mem::take(&mut current));
            }
            if !current.is_empty() {
                current.push(' ');
            }
            current.push_str(word);
        }
        out.push(current);
    }
    out
}

/// Columns two spaces apart, as wide as they need. See [`grid_in`].
pub fn grid(indent: &str, heads: &[&str], rows: &[Vec<String>]) -> String {
    grid_in(0, indent, heads, rows)
}

/// Columns two spaces apart in lines of at most `columns` characters (0: no bound): the last column
/// is wrapped, and columns that do not fit go below their row. A head that starts with `>` is aligned right. Cells are escaped here.
pub fn grid_in(columns: usize, indent: &str, heads: &[&str], rows: &[Vec<String>]) -> String {
    let last = heads.len().saturating_sub(1);
    let chars_max = |column: usize| if column == last { LAST_CELL_CHARS_MAX } else { CELL_CHARS_MAX };
    let escaped = |row: &Vec<String>| {
        row.iter().enumerate().map(|(column, cell)| shown_line(cell, chars_max(column))).collect()
    };
    let rows: Vec<Vec<String>> = rows.iter().map(escaped).collect();
    let name = |head: &str| head.trim_start_matches('>').to_owned();
    let head: Vec<String> = heads.iter().map(|head| name(head)).collect();
    let width = |column: usize| {
        let cells = rows.iter().chain(std::iter::once(&head)).filter_map(|row| row.get(column));
        cells.map(String::len).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..heads.len()).map(width).collect();
    let starts: Vec<usize> = widths
        .iter()
        .scan(indent.len(), |at, width| {
            let start = *at;
            *at += width + 2;
            Some(start)
        })
        .collect();
    let ends = |column: usize| starts[column] + widths[column];
    let fits = |column: usize| columns == 0 || ends(column) <= columns;
    // A word, such as a hash, that is whole only below.
    let words = rows.iter().filter_map(|row| row.get(last)).flat_map(|cell| cell.split(' '));
    let word = words.map(str::len).max().unwrap_or(0);
    let beside = columns.saturating_sub(starts.get(last).copied().unwrap_or(0));
    let cut_beside = word > beside && word + indent.len() + BELOW <= columns;
    let wraps = beside > LAST_COLUMN_CHARS_MIN
        && !cut_beside
        && !heads.last().is_some_and(|head| head.starts_with('>'));
    // Every column from the first that does not fit goes below.
    let cut =
        (0..heads.len()).find(|&column| !(fits(column) || wraps && column == last)).unwrap_or(heads.len());
    let mut out = String::new();
    for row in std::iter::once(&head).chain(&rows) {
        let cell = |(column, cell): (usize, &String)| {
            let width = widths[column];
            if heads[column].starts_with('>') {
                format!("{cell:>width$}  ")
            } else {
                format!("{cell:<width$}  ")
            }
        };
        let cells = |range: std::ops::Range<usize>| -> String {
            row.iter().enumerate().skip(range.start).take(range.len()).map(cell).collect()
        };
        let line = if cut == heads.len() && wraps && !fits(last) {
            let below = format!("\n{}", " ".repeat(starts[last]));
            let text = row.get(last).map(|cell| wrapped(cell, columns - starts[last]).join(&below));
            cells(0..last) + &text.unwrap_or_default()
        } else {
            cells(0..cut)
        };
        out.push_str(format!("{indent}{line}").trim_end());
        out.push('\n');
        let rest = if cut == heads.len() { String::new() } else { cells(cut..heads.len()) };
        for line in wrapped(rest.trim_end(), columns.saturating_sub(indent.len() + BELOW)) {
            out.push_str(format!("{indent}{}{line}", " ".repeat(BELOW)).trim_end());
            out.push('\n');
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_sizes_and_figures_are_short() {
        let lengths = [0, 999, 1000, 59_999, 60_000, 125_000, 3_720_000, 273_600_000].map(length);
        assert_eq!(lengths, ["0ms", "999ms", "1.0s", "59.9s", "1m00s", "2m05s", "1h02m", "3d4h"]);
        let sizes = [0, 812, 1024, 1536, 25_769_803_776, u64::MAX].map(size);
        assert_eq!(sizes, ["0", "812", "1Ki", "1.5Ki", "24Gi", "16383Pi"]);
        assert_eq!([0.0, 1.0, 0.44444, 12.5, -0.00001].map(figure), ["0", "1", "0.4444", "12.5", "0"]);
        assert_eq!([0, 1500, 2000, 24_125].map(cores), ["0", "1.5", "2", "24.125"]);
        assert_eq!(
            [0, 999, 1000, 16_000, 1_234_567].map(count),
            ["0", "999", "1,000", "16,000", "1,234,567"]
        );
    }

    #[test]
    fn cells_are_escaped_bounded_and_aligned() {
        let rows = [vec!["a\u{1b}[31m".to_owned(), "7".to_owned()], vec!["x".repeat(200), "12".to_owned()]];
        let text = grid("", &["NAME", ">N"], &rows);
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[1].starts_with("a\\u{1b}[31m "), "{text}");
        assert!(lines.iter().all(|line| line.len() == lines[2].len()), "{text}");
        assert!(lines[2].contains("xxx...") && lines[2].len() < 100, "{text}");
    }

    #[test]
    fn a_narrow_terminal_gets_whole_words_and_whole_lines() {
        let row = |name: &str, text: &str| vec![name.to_owned(), "12".to_owned(), text.to_owned()];
        let rows = [row("a", "seven words that need more than a line of forty"), row("b", "short")];
        let text = grid_in(50, "", &["NAME", ">N", "MESSAGE"], &rows);
        assert!(text.lines().all(|line| line.len() <= 50), "{text}");
        assert_eq!(text.lines().nth(2), Some("          of forty"), "{text}");
        // Too narrow to wrap beside: below.
        let text = grid_in(30, "", &["NAME", ">N", "MESSAGE"], &rows);
        assert!(text.lines().all(|line| line.len() <= 30), "{text}");
        assert_eq!(text.lines().nth(3), Some("    seven words that need more"), "{text}");
        assert_eq!(grid("", &["NAME", ">N", "MESSAGE"], &rows).lines().count(), 3);
        // A word that is too long beside and fits below stays whole.
        let text = grid_in(76, "", &["NAME", ">N", "SHA256"], &[row("name-of-it", &"a".repeat(64))]);
        assert_eq!(text.lines().last(), Some(format!("    {}", "a".repeat(64)).as_str()), "{text}");
        assert_eq!(wrapped("one /a/path/that/is/long two", 8), ["one", "/a/path/that/is/long", "two"]);
    }
}
