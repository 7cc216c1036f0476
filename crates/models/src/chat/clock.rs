//! Dates for templates that state the current one, in UTC.

use std::time::{SystemTime, UNIX_EPOCH};

const SECONDS_PER_DAY: u64 = 86_400;

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

/// The epoch was a Thursday.
const WEEKDAYS: [&str; 7] = [
    "Thursday",
    "Friday",
    "Saturday",
    "Sunday",
    "Monday",
    "Tuesday",
    "Wednesday",
];

/// `time` in the notation of C's strftime, English names; an unknown directive is the error.
pub(super) fn strftime(time: SystemTime, format: &str) -> Result<String, String> {
    let seconds = time.duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
    let days = seconds / SECONDS_PER_DAY;
    let (year, month, day) = civil(days);
    let of_day = seconds % SECONDS_PER_DAY;
    let (hour, minute, second) = (of_day / 3600, of_day / 60 % 60, of_day % 60);
    let month_name = MONTHS[(month - 1) as usize];
    let weekday = WEEKDAYS[(days % 7) as usize];
    let mut out = String::new();
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        let mut directive: String = chars.next().into_iter().collect();
        if directive == "-" {
            directive.extend(chars.next());
        }
        out.push_str(&match directive.as_str() {
            "Y" => year.to_string(),
            "y" => format!("{:02}", year % 100),
            "m" => format!("{month:02}"),
            "-m" => month.to_string(),
            "d" => format!("{day:02}"),
            "-d" => day.to_string(),
            "e" => format!("{day:2}"),
            "B" => month_name.to_owned(),
            "b" => month_name[..3].to_owned(),
            "A" => weekday.to_owned(),
            "a" => weekday[..3].to_owned(),
            "H" => format!("{hour:02}"),
            "I" => format!("{:02}", (hour + 11) % 12 + 1),
            "p" => if hour < 12 { "AM" } else { "PM" }.to_owned(),
            "M" => format!("{minute:02}"),
            "S" => format!("{second:02}"),
            "F" => format!("{year}-{month:02}-{day:02}"),
            "T" => format!("{hour:02}:{minute:02}:{second:02}"),
            "%" => "%".to_owned(),
            other => return Err(format!("%{other}")),
        });
    }
    Ok(out)
}

/// Year, month and day of a day count since the epoch, in the proleptic Gregorian calendar.
fn civil(days: u64) -> (u64, u64, u64) {
    let is_leap = |year: u64| {
        year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
    };
    let mut year = 1970;
    let mut left = days;
    loop {
        let length = if is_leap(year) { 366 } else { 365 };
        if left < length {
            break;
        }
        left -= length;
        year += 1;
    }
    let february = if is_leap(year) { 29 } else { 28 };
    let lengths = [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let mut month = 1;
    for length in lengths {
        if left < length {
            break;
        }
        left -= length;
        month += 1;
    }
    (year, month, left + 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn at(seconds: u64, format: &str) -> String {
        strftime(UNIX_EPOCH + Duration::from_secs(seconds), format).unwrap()
    }

    #[test]
    fn known_instants() {
        assert_eq!(
            at(0, "%A %d %B %Y %H:%M:%S"),
            "Thursday 01 January 1970 00:00:00"
        );
        // 2024-02-29, a Thursday of a leap year.
        assert_eq!(
            at(1_709_210_096, "%F %T %a %b %-d %I %p"),
            "2024-02-29 12:34:56 Thu Feb 29 12 PM"
        );
        // 2000-12-31, the last day of a leap year divisible by 400.
        assert_eq!(at(978_220_800, "%Y-%m-%d|%e|%y%%"), "2000-12-31|31|00%");
        assert_eq!(at(978_307_200, "%F %A %I%p"), "2001-01-01 Monday 12AM");
    }

    #[test]
    fn an_unknown_directive_is_named() {
        assert_eq!(strftime(UNIX_EPOCH, "%Q"), Err("%Q".to_owned()));
        assert_eq!(strftime(UNIX_EPOCH, "x%"), Err("%".to_owned()));
    }
}
