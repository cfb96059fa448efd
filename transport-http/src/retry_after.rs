//! How long a server asks to be left alone.

use std::time::{Duration, SystemTime};

/// The longest hint there is: it can be added to any instant. A server that asks for more is taken to mean this.
pub const LONGEST_HINT: Duration = Duration::from_secs(366 * 24 * 60 * 60);

/// Reads a `Retry-After` header: seconds, or an HTTP date (RFC 9110, 10.2.3), up to [`LONGEST_HINT`]. A date that has
/// passed is no time at all; anything else is no hint.
pub fn retry_after(value: &str, now: SystemTime) -> Option<Duration> {
    let value = value.trim();
    if !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit()) {
        return Some(value.parse().map_or(LONGEST_HINT, Duration::from_secs).min(LONGEST_HINT));
    }
    let at = httpdate::parse_http_date(value).ok()?;
    Some(at.duration_since(now).unwrap_or_default().min(LONGEST_HINT))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn now() -> SystemTime {
        httpdate::parse_http_date("Sun, 06 Nov 1994 08:49:37 GMT").unwrap()
    }

    #[test]
    fn seconds() {
        assert_eq!(retry_after("7", now()), Some(Duration::from_secs(7)));
        assert_eq!(retry_after(" 0 ", now()), Some(Duration::ZERO));
    }

    #[test]
    fn no_hint_is_too_long_for_arithmetic() {
        let year_9999 = "Fri, 31 Dec 9999 23:59:59 GMT";
        for long in ["31622401", "18446744073709551615", "99999999999999999999999", year_9999] {
            assert_eq!(retry_after(long, now()), Some(LONGEST_HINT), "{long}");
        }
    }

    #[test]
    fn dates_in_all_three_forms() {
        for date in ["Sun, 06 Nov 1994 08:50:37 GMT", "Sunday, 06-Nov-94 08:50:37 GMT", "Sun Nov  6 08:50:37 1994"] {
            assert_eq!(retry_after(date, now()), Some(Duration::from_secs(60)), "{date}");
        }
        assert_eq!(retry_after("Sun, 06 Nov 1994 08:49:07 GMT", now()), Some(Duration::ZERO));
    }

    #[test]
    fn garbage_is_no_hint() {
        for garbage in ["", " ", "soon", "-1", "1.5", "7s", "0x10", "Sun, 99 Nov 1994 08:49:37 GMT", "\u{0661}"] {
            assert_eq!(retry_after(garbage, now()), None, "{garbage}");
        }
    }
}
