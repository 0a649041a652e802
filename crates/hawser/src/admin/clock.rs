//! Moments as PgBouncer prints them.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use hawser_pooler::time::Time;

/// The two clocks at one moment: the loops' and the calendar's.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    /// The loops' now.
    pub now: Time,
    /// The calendar's now.
    pub wall: SystemTime,
}

impl Clock {
    /// A moment of the loops as a date.
    pub fn date(&self, moment: Time) -> String {
        date(self.wall.checked_sub(self.now.since(moment)).unwrap_or(UNIX_EPOCH))
    }
}

/// `2026-11-21 15:20:23 UTC`. Dates before 1970 are the first second of it.
pub fn date(moment: SystemTime) -> String {
    let seconds = moment.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO).as_secs();
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    // Howard Hinnant, "chrono-compatible low-level date algorithms", civil_from_days: years begin in
    // March, so that the leap day is the last of its year; 719468 days lie between that era and 1970.
    let shifted = days + 719_468;
    let era = shifted / 146_097;
    let day_of_era = shifted % 146_097;
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    let (hour, minute) = (second / 3_600, second / 60 % 60);
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{:02} UTC", second % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        for (seconds, expected) in [
            (0, "1970-01-01 00:00:00 UTC"),
            (951_782_399, "2000-02-28 23:59:59 UTC"),
            (951_782_400, "2000-02-29 00:00:00 UTC"),
            (1_709_251_200, "2024-03-01 00:00:00 UTC"),
            (4_107_542_399, "2100-02-28 23:59:59 UTC"),
            (4_107_542_400, "2100-03-01 00:00:00 UTC"),
            (1_795_273_223, "2026-11-21 15:00:23 UTC"),
        ] {
            assert_eq!(date(UNIX_EPOCH + Duration::from_secs(seconds)), expected);
        }
    }

    #[test]
    fn a_moment_of_the_loops_lies_as_far_back_on_the_calendar() {
        let wall = UNIX_EPOCH + Duration::from_secs(100);
        let clock = Clock { now: Time::from_micros(50_000_000), wall };
        assert_eq!(clock.date(Time::from_micros(20_000_000)), "1970-01-01 00:01:10 UTC");
    }
}
