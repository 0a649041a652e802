//! Columns that fit a terminal: figures whole, texts cut where it is seen.

/// How wide columns of figures are: as their widest, and at least so wide. Those are left out that no
/// longer fit into `room`: half of a figure would be another figure.
pub(super) fn fitting<const N: usize>(
    least: [usize; N],
    rows: &[[String; N]],
    room: usize,
) -> Vec<usize> {
    let widest = |at: usize| {
        let widths = rows.iter().map(|row| row[at].chars().count());
        widths.max().unwrap_or(0).max(least[at])
    };
    let mut used = 0;
    let fits = |width: &usize| {
        used += width + 1;
        used <= room
    };
    (0..N).map(widest).take_while(fits).collect()
}

/// A text of at most `width` characters, with a sign where it was cut.
pub(super) fn short(text: &str, width: usize) -> String {
    match text.char_indices().nth(width.saturating_sub(1)) {
        Some((at, last)) if at + last.len_utf8() < text.len() => format!("{}…", &text[..at]),
        _ => text.to_owned(),
    }
}
