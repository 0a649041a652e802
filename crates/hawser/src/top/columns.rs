//! Columns that fit a terminal: figures are whole.

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
