//! Cron lines: minute, hour, day of month, month, day of week, as crontab(5) reads them.
//!
//! ```
//! use rollout::cron::CronLine;
//! let line: CronLine = "30 2 * * mon-fri".parse().unwrap();
//! assert!(line.takes_minute(2, 30) && !line.takes_minute(3, 30));
//! ```

use std::fmt;
use std::str::FromStr;

use chrono::{Datelike, NaiveDate};

/// A checked line. At least one date in 48 years fits it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CronLine {
    text: String,
    /// Bit n of a field is set iff it takes the value n.
    minutes: u64,
    hours: u64,
    days: u64,
    months: u64,
    weekdays: u64,
    /// Both day fields are restricted: a day that fits either of them fits.
    either_day: bool,
}

/// What a line should have been.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct BadCron(String);

struct Field {
    name: &'static str,
    min: u32,
    max: u32,
    words: &'static [&'static str],
}

const MONTHS: &[&str] = &["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"];
const WEEKDAYS: &[&str] = &["sun", "mon", "tue", "wed", "thu", "fri", "sat"];
/// The most days of each month.
const MONTH_DAYS: [u32; 12] = [31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];

const FIELDS: [Field; 5] = [
    Field { name: "minute", min: 0, max: 59, words: &[] },
    Field { name: "hour", min: 0, max: 23, words: &[] },
    Field { name: "day of month", min: 1, max: 31, words: &[] },
    Field { name: "month", min: 1, max: 12, words: MONTHS },
    Field { name: "day of week", min: 0, max: 7, words: WEEKDAYS },
];

impl FromStr for CronLine {
    type Err = BadCron;

    fn from_str(text: &str) -> Result<Self, BadCron> {
        let parts: Vec<&str> = text.split_ascii_whitespace().take(FIELDS.len() + 1).collect();
        if text.starts_with('@') || parts.len() != FIELDS.len() {
            let expected = "5 fields: minute, hour, day of month, month, day of week, such as `0 2 * * *`";
            return Err(BadCron(expected.to_owned()));
        }
        let mut masks = [0; FIELDS.len()];
        for ((part, field), mask) in parts.iter().zip(&FIELDS).zip(&mut masks) {
            *mask = field.mask(part).ok_or_else(|| {
                let Field { name, min, max, .. } = field;
                BadCron(format!(
                    "as {name}: `*`, or {min} to {max}, with `-` `,` and `/` as in `1-5`, `*/10`"
                ))
            })?;
        }
        let [minutes, hours, days, months, weekdays] = masks;
        // 7 is another name of Sunday.
        let weekdays = (weekdays | weekdays >> 7) & 0x7f;
        let restricted = |part: &str| !part.starts_with('*');
        let either_day = restricted(parts[2]) && restricted(parts[4]);
        let longest = (1..=12).zip(MONTH_DAYS).filter(|(month, _)| takes(months, *month));
        let longest = longest.map(|(_, days)| days).max().unwrap_or_default();
        if !either_day && days.trailing_zeros() > longest {
            return Err(BadCron(format!("a day that there is: those months have at most {longest} days")));
        }
        let text = parts.join(" ");
        Ok(Self { text, minutes, hours, days, months, weekdays, either_day })
    }
}

impl fmt::Display for CronLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl CronLine {
    /// Whether any minute of this day fits.
    pub fn takes_day(&self, day: NaiveDate) -> bool {
        let of_month = takes(self.days, day.day());
        let of_week = takes(self.weekdays, day.weekday().num_days_from_sunday());
        let fits = if self.either_day { of_month || of_week } else { of_month && of_week };
        fits && takes(self.months, day.month())
    }

    /// Whether this minute of a day that fits does.
    pub fn takes_minute(&self, hour: u32, minute: u32) -> bool {
        takes(self.hours, hour) && takes(self.minutes, minute)
    }

    /// The minutes of a day that fit, counted from its start, `first` and later.
    pub(crate) fn minutes_from(&self, first: u32) -> impl Iterator<Item = u32> {
        let hours = (first / 60..24).filter(|hour| takes(self.hours, *hour));
        let all = hours.flat_map(|hour| (0..60).map(move |minute| (hour, minute)));
        all.filter(|(_, minute)| takes(self.minutes, *minute))
            .map(|(hour, minute)| hour * 60 + minute)
            .filter(move |minute| *minute >= first)
    }
}

const fn takes(mask: u64, value: u32) -> bool {
    value < u64::BITS && mask >> value & 1 == 1
}

impl Field {
    fn mask(&self, part: &str) -> Option<u64> {
        part.split(',').try_fold(0, |mask, item| Some(mask | self.item(item)?))
    }

    fn item(&self, item: &str) -> Option<u64> {
        let (range, step) = match item.split_once('/') {
            None => (item, None),
            Some((range, step)) => (range, Some(number(step).filter(|n| (1..=self.max).contains(n))?)),
        };
        let (low, high) = match range.split_once('-') {
            _ if range == "*" => (self.min, self.max),
            Some((low, high)) => (self.value(low)?, self.value(high)?),
            // `5/10` means `5-59/10` to some and nothing to others.
            None if step.is_some() => return None,
            None => (self.value(range)?, self.value(range)?),
        };
        let each = usize::try_from(step.unwrap_or(1)).ok()?;
        (low <= high).then(|| (low..=high).step_by(each).fold(0, |mask, value| mask | 1 << value))
    }

    fn value(&self, text: &str) -> Option<u32> {
        let word = self.words.iter().position(|word| word.eq_ignore_ascii_case(text));
        match word {
            Some(at) => u32::try_from(at).ok().map(|at| at + self.min),
            None => number(text).filter(|n| (self.min..=self.max).contains(n)),
        }
    }
}

fn number(text: &str) -> Option<u32> {
    let digits = (1..=2).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_digit());
    digits.then(|| text.parse().ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(text: &str) -> CronLine {
        text.parse().unwrap_or_else(|problem| panic!("{text}: {problem}"))
    }

    #[test]
    fn cron_lines_have_five_fields_in_range() {
        for text in ["0 2 * * *", "*/10 0-6,22 1 jan-mar MON,wed", "59 23 31 12 7", "00 02 * * 0"] {
            assert_eq!(line(text).to_string(), text);
        }
        let bad =
            ["", "@reboot", "0 2 * *", "0 0 2 * * *", "60 * * * *", "* 24 * * *", "* * 0 * *", "* * * 13 *"];
        for text in
            bad.into_iter().chain(["* * * * 8", "5-1 * * * *", "*/0 * * * *", "5/10 * * * *", "a * * * *"])
        {
            assert!(text.parse::<CronLine>().is_err(), "{text}");
        }
        assert!("0 25 * * *".parse::<CronLine>().unwrap_err().to_string().starts_with("as hour: "));
    }

    #[test]
    fn a_day_that_never_comes_is_refused() {
        for text in ["0 0 30 2 *", "0 0 31 2,4,6,9,11 *", "0 0 31 feb */2"] {
            let problem = text.parse::<CronLine>().expect_err(text).to_string();
            assert!(problem.starts_with("a day that there is"), "{text}: {problem}");
        }
        for text in ["0 0 29 2 *", "0 0 30 2 mon", "0 0 31 2,3 *", "0 0 15,31 2 *"] {
            line(text);
        }
    }

    #[test]
    fn days_of_month_and_week_are_either_if_both_are_restricted_and_both_otherwise() {
        let day = |day| NaiveDate::from_ymd_opt(2026, 11, day).expect("a day");
        // 2026-11-01 is a Sunday.
        for (text, days) in [
            ("0 0 * * 7", vec![1, 8, 15, 22, 29]),
            ("0 0 * * sun", vec![1, 8, 15, 22, 29]),
            ("0 0 13 * fri", vec![6, 13, 20, 27]),
            ("0 0 13 * mon", vec![2, 9, 13, 16, 23, 30]),
            ("0 0 */10 * mon", vec![]),
            ("0 0 */2 * mon", vec![9, 23]),
            ("0 0 31 * *", vec![]),
            ("0 0 5-7 11 *", vec![5, 6, 7]),
            ("0 0 5 12 *", vec![]),
        ] {
            let fit: Vec<u32> = (1..=30).filter(|n| line(text).takes_day(day(*n))).collect();
            assert_eq!(fit, days, "{text}");
        }
    }

    #[test]
    fn minutes_of_a_day_start_where_they_are_asked_from() {
        let minutes = |first| line("*/30 1,23 * * *").minutes_from(first).collect::<Vec<_>>();
        assert_eq!(minutes(0), [60, 90, 1380, 1410]);
        assert_eq!(minutes(61), [90, 1380, 1410]);
        assert!(minutes(1411).is_empty());
        assert!(minutes(1440).is_empty());
    }
}
