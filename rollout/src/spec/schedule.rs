//! Cron lines: minute, hour, day of month, month, day of week.

struct CronField {
    name: &'static str,
    min: u32,
    max: u32,
    words: &'static [&'static str],
}

const MONTHS: &[&str] = &["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"];
const DAYS: &[&str] = &["sun", "mon", "tue", "wed", "thu", "fri", "sat"];

const FIELDS: [CronField; 5] = [
    CronField { name: "minute", min: 0, max: 59, words: &[] },
    CronField { name: "hour", min: 0, max: 23, words: &[] },
    CronField { name: "day of month", min: 1, max: 31, words: &[] },
    CronField { name: "month", min: 1, max: 12, words: MONTHS },
    CronField { name: "day of week", min: 0, max: 7, words: DAYS },
];

/// Checks a cron line; the error says what to write.
pub(crate) fn cron(text: &str) -> Result<(), String> {
    let parts: Vec<&str> = text.split_ascii_whitespace().take(FIELDS.len() + 1).collect();
    if text.starts_with('@') || parts.len() != FIELDS.len() {
        return Err(
            "5 fields: minute, hour, day of month, month, day of week, such as `0 2 * * *`".to_owned()
        );
    }
    for (part, field) in parts.iter().zip(&FIELDS) {
        if !part.split(',').all(|item| field.takes(item)) {
            let CronField { name, min, max, .. } = field;
            return Err(format!(
                "as {name}: `*`, or {min} to {max}, with `-` `,` and `/` as in `1-5`, `*/10`"
            ));
        }
    }
    Ok(())
}

impl CronField {
    fn takes(&self, item: &str) -> bool {
        let (range, step) = match item.split_once('/') {
            None => (item, None),
            Some((range, step)) => (range, Some(step)),
        };
        let stepped = step.is_none_or(|step| number(step).is_some_and(|n| (1..=self.max).contains(&n)));
        let ranged = match range.split_once('-') {
            _ if range == "*" => true,
            Some((low, high)) => self.value(low).zip(self.value(high)).is_some_and(|(low, high)| low <= high),
            // `5/10` means `5-59/10` to some and nothing to others.
            None => step.is_none() && self.value(range).is_some(),
        };
        stepped && ranged
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

    #[test]
    fn cron_lines_have_five_fields_in_range() {
        for text in ["0 2 * * *", "*/10 0-6,22 1 jan-mar MON,wed", "59 23 31 12 7", "00 02 * * 0"] {
            assert_eq!(cron(text), Ok(()), "{text}");
        }
        let bad =
            ["", "@reboot", "0 2 * *", "0 0 2 * * *", "60 * * * *", "* 24 * * *", "* * 0 * *", "* * * 13 *"];
        for text in
            bad.into_iter().chain(["* * * * 8", "5-1 * * * *", "*/0 * * * *", "5/10 * * * *", "a * * * *"])
        {
            assert!(cron(text).is_err(), "{text}");
        }
        assert!(cron("0 25 * * *").unwrap_err().starts_with("as hour: "));
    }
}
