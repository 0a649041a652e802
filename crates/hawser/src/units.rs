//! Figures and texts as a person reads them: on the status page, in `hawser top` and in `hawser demo`.

/// `12,345`.
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// `81 µs`, `1.23 ms`, `12.3 s`, `2.8 h`: at most seven characters up to a month.
pub fn time(micros: u64) -> String {
    let part = micros as f64;
    match micros {
        0..1_000 => format!("{micros} µs"),
        1_000..9_995 => format!("{:.2} ms", part / 1e3),
        9_995..99_950 => format!("{:.1} ms", part / 1e3),
        99_950..999_500 => format!("{:.0} ms", part / 1e3),
        999_500..99_950_000 => format!("{:.1} s", part / 1e6),
        99_950_000..9_999_500_000 => format!("{} s", grouped((micros + 500_000) / 1_000_000)),
        _ => format!("{:.1} h", part / 3.6e9),
    }
}

/// `04:05:06`, `3 d 04:05:06`.
pub fn duration(seconds: u64) -> String {
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    let clock = format!("{:02}:{:02}:{:02}", rest / 3_600, rest / 60 % 60, rest % 60);
    if days > 0 { format!("{days} d {clock}") } else { clock }
}

/// `3.5 MiB`, `1,234 MiB`.
pub fn memory(bytes: u64) -> String {
    match bytes >> 20 {
        0..100 => format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20)),
        mebibytes => format!("{} MiB", grouped(mebibytes)),
    }
}

/// Server connections of a pool: `3 of 4`, or `4 + 4` where more are open while clients idle inside
/// transactions.
pub fn connections(all: u32, size: u32) -> String {
    match all.saturating_sub(size) {
        0 => format!("{all} of {size}"),
        more => format!("{size} + {more}"),
    }
}

/// A text of at most `width` characters, with a sign where it was cut.
pub fn short(text: &str, width: usize) -> String {
    match text.char_indices().nth(width.saturating_sub(1)) {
        Some((at, last)) if at + last.len_utf8() < text.len() => format!("{}…", &text[..at]),
        _ => text.to_owned(),
    }
}

/// The last `width` of these numbers as a line of blocks, from zero to the highest of them.
pub fn sparkline<'a>(numbers: impl IntoIterator<Item = &'a f64>, width: usize) -> String {
    const BLOCKS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let numbers: Vec<f64> = numbers.into_iter().copied().collect();
    let shown = &numbers[numbers.len().saturating_sub(width)..];
    let highest = shown.iter().copied().fold(f64::MIN_POSITIVE, f64::max);
    shown.iter().map(|number| BLOCKS[(number / highest * 7.0).round() as usize & 7]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_grouped_and_have_units() {
        for (number, text) in [(0, "0"), (999, "999"), (1_000, "1,000"), (1_234_567, "1,234,567")] {
            assert_eq!(grouped(number), text);
        }
        for (micros, text) in [
            (0, "0 µs"),
            (999, "999 µs"),
            (1_000, "1.00 ms"),
            (9_994, "9.99 ms"),
            (9_995, "10.0 ms"),
            (99_949, "99.9 ms"),
            (99_950, "100 ms"),
            (999_499, "999 ms"),
            (999_500, "1.0 s"),
            (12_345_678, "12.3 s"),
            (99_950_000, "100 s"),
            (9_999_499_999, "9,999 s"),
            (9_999_500_000, "2.8 h"),
        ] {
            assert_eq!(time(micros), text);
        }
        for micros in 0..200_000 {
            assert!(time(micros).chars().count() <= 7, "{}", time(micros));
        }
        assert_eq!(memory(3_670_016), "3.5 MiB");
        assert_eq!(memory(1_234 << 20), "1,234 MiB");
        assert_eq!((duration(59), duration(273_906)), ("00:00:59".into(), "3 d 04:05:06".into()));
        assert_eq!((connections(3, 4), connections(8, 4)), ("3 of 4".into(), "4 + 4".into()));
    }

    #[test]
    fn a_sparkline_reaches_from_zero_to_the_highest() {
        assert_eq!(sparkline(&[9.0, 0.0, 3.5, 7.0], 3), "▁▅█");
        assert_eq!(sparkline(&[0.0, 0.0], 9), "▁▁");
        assert_eq!(sparkline(&[], 9), "");
    }
}
