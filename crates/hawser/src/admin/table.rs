//! Results of SHOW: columns, rows, and how they go over the wire in text and binary.
//!
//! # Model       types and their oids are PgBouncer's (src/pktbuf.c): text, int4, int8, numeric.
//!               Binary is for drivers that ask for nothing else (asyncpg)

use std::borrow::Cow;

use hawser_pooler::wire::{backend, build};

/// A column's type.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// `text`.
    Text,
    /// `int4`.
    Int4,
    /// `int8`.
    Int8,
    /// `numeric`, for counters that may outgrow int8; without decimals.
    Numeric,
}

impl Kind {
    /// The oid in pg_type, and the size that RowDescription states.
    fn oid_and_size(self) -> (u32, i16) {
        match self {
            Self::Text => (25, -1),
            Self::Int4 => (23, 4),
            Self::Int8 => (20, 8),
            Self::Numeric => (1700, -1),
        }
    }
}

/// A column.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Column {
    /// Its name.
    pub name: &'static str,
    /// Its type.
    pub kind: Kind,
}

/// A value.
#[derive(Clone, PartialEq, Eq, Debug, derive_more::From)]
pub enum Cell {
    /// NULL.
    Null,
    /// Of a text column.
    #[from(String, &str)]
    Text(String),
    /// Of a column of any number type.
    #[from(u64, u32, u16, bool)]
    Number(u64),
}

impl From<Option<String>> for Cell {
    fn from(text: Option<String>) -> Self {
        text.map_or(Self::Null, Self::Text)
    }
}

impl From<usize> for Cell {
    fn from(number: usize) -> Self {
        Self::Number(number as u64)
    }
}

/// How values are sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Format {
    /// As text.
    #[default]
    Text,
    /// As the type's send function makes it.
    Binary,
}

impl Format {
    /// The code in Bind and RowDescription.
    pub fn code(self) -> u16 {
        match self {
            Self::Text => 0,
            Self::Binary => 1,
        }
    }
}

/// Columns of a result, at the cost of none of its rows.
pub type Columns = &'static [Column];

/// A result.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Table {
    /// Its columns.
    pub columns: Cow<'static, [Column]>,
    /// Its rows, each with a cell for every column.
    pub rows: Vec<Vec<Cell>>,
}

impl Table {
    /// Without rows.
    pub fn new(columns: Columns) -> Self {
        Self { columns: Cow::Borrowed(columns), rows: Vec::new() }
    }

    /// Appends a row.
    pub fn push(&mut self, row: Vec<Cell>) {
        debug_assert_eq!(row.len(), self.columns.len(), "{row:?}");
        self.rows.push(row);
    }
}

/// Declares columns: `columns![Text "name", Int4 "port"]`.
macro_rules! columns {
    ($($kind:ident $name:literal),+ $(,)?) => {
        &[$($crate::admin::table::Column {
            name: $name,
            kind: $crate::admin::table::Kind::$kind,
        }),+]
    };
}
pub(super) use columns;

/// The format of the `at`th column, where Bind gave none, one for all, or one for each.
pub fn format_of(formats: &[Format], at: usize) -> Format {
    match formats {
        [] => Format::Text,
        [all] => *all,
        each => each.get(at).copied().unwrap_or_default(),
    }
}

/// Appends a RowDescription.
pub fn row_description(out: &mut Vec<u8>, columns: &[Column], formats: &[Format]) {
    build::message(out, backend::ROW_DESCRIPTION, |out| {
        out.extend_from_slice(&u16::try_from(columns.len()).unwrap_or(u16::MAX).to_be_bytes());
        for (at, column) in columns.iter().enumerate() {
            let (oid, size) = column.kind.oid_and_size();
            build::string(out, column.name.as_bytes());
            out.extend_from_slice(&[0; 6]); // no table, no attribute number
            out.extend_from_slice(&oid.to_be_bytes());
            out.extend_from_slice(&size.to_be_bytes());
            out.extend_from_slice(&(-1i32).to_be_bytes()); // no type modifier
            out.extend_from_slice(&format_of(formats, at).code().to_be_bytes());
        }
    });
}

/// Appends a DataRow.
pub fn data_row(out: &mut Vec<u8>, columns: &[Column], row: &[Cell], formats: &[Format]) {
    build::message(out, backend::DATA_ROW, |out| {
        out.extend_from_slice(&u16::try_from(row.len()).unwrap_or(u16::MAX).to_be_bytes());
        for (at, (column, cell)) in columns.iter().zip(row).enumerate() {
            if *cell == Cell::Null {
                out.extend_from_slice(&(-1i32).to_be_bytes());
                continue;
            }
            let start = out.len();
            out.extend_from_slice(&[0; 4]);
            match (cell, format_of(formats, at)) {
                (Cell::Null, _) => {}
                // A NUL cannot be in a text of PostgreSQL.
                (Cell::Text(text), _) => out.extend(text.bytes().filter(|byte| *byte != 0)),
                (Cell::Number(number), Format::Text) => {
                    let number = match column.kind {
                        Kind::Int4 => (*number).min(i32::MAX as u64),
                        Kind::Int8 => (*number).min(i64::MAX as u64),
                        Kind::Text | Kind::Numeric => *number,
                    };
                    out.extend_from_slice(number.to_string().as_bytes());
                }
                (Cell::Number(number), Format::Binary) => binary(out, column.kind, *number),
            }
            let length = u32::try_from(out.len() - start - 4).unwrap_or(u32::MAX);
            out[start..start + 4].copy_from_slice(&length.to_be_bytes());
        }
    });
}

/// Appends a number as its type's send function does; one beyond the type's range is the greatest.
fn binary(out: &mut Vec<u8>, kind: Kind, number: u64) {
    match kind {
        Kind::Int4 => {
            out.extend_from_slice(&i32::try_from(number).unwrap_or(i32::MAX).to_be_bytes());
        }
        Kind::Int8 => {
            out.extend_from_slice(&i64::try_from(number).unwrap_or(i64::MAX).to_be_bytes());
        }
        Kind::Text => out.extend_from_slice(number.to_string().as_bytes()),
        Kind::Numeric => {
            // numeric_send: count of base-10000 digits, weight of the first, sign, scale, digits.
            let mut digits = Vec::new();
            let mut rest = number;
            while rest > 0 {
                digits.push((rest % 10_000) as u16);
                rest /= 10_000;
            }
            digits.reverse();
            let count = digits.len() as u16;
            for word in [count, count.saturating_sub(1), 0, 0].into_iter().chain(digits) {
                out.extend_from_slice(&word.to_be_bytes());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COLUMNS: Columns = columns![Text "a", Int4 "b", Int8 "c", Numeric "d"];

    #[test]
    fn a_row_goes_out_as_text() {
        let mut out = Vec::new();
        let row = [Cell::from("x\0y"), Cell::Null, Cell::from(7u64), Cell::from(u64::MAX)];
        data_row(&mut out, COLUMNS, &row, &[]);
        let mut expected = vec![b'D', 0, 0, 0, 45, 0, 4, 0, 0, 0, 2];
        expected.extend_from_slice(b"xy\xff\xff\xff\xff\0\0\0\x017\0\0\0\x1418446744073709551615");
        expected[4] = (expected.len() - 1) as u8;
        assert_eq!(out, expected);
    }

    #[test]
    fn numbers_go_out_in_the_binary_form_of_their_types() {
        let mut out = Vec::new();
        binary(&mut out, Kind::Int4, 258);
        assert_eq!(out, [0, 0, 1, 2]);
        out.clear();
        binary(&mut out, Kind::Int8, 258);
        assert_eq!(out, [0, 0, 0, 0, 0, 0, 1, 2]);
        out.clear();
        binary(&mut out, Kind::Int4, u64::MAX);
        assert_eq!(out, i32::MAX.to_be_bytes());
        for (number, words) in [
            (0, vec![0, 0, 0, 0]),
            (1, vec![1, 0, 0, 0, 1]),
            (10_000, vec![2, 1, 0, 0, 1, 0]),
            (123_456_789, vec![3, 2, 0, 0, 1, 2345, 6789]),
        ] {
            out.clear();
            binary(&mut out, Kind::Numeric, number);
            let expected: Vec<u8> =
                words.iter().flat_map(|word: &u16| word.to_be_bytes()).collect();
            assert_eq!(out, expected, "{number}");
        }
    }

    #[test]
    fn a_description_states_oids_and_formats() {
        let mut out = Vec::new();
        row_description(&mut out, &COLUMNS[1..2], &[Format::Binary]);
        assert_eq!(
            out,
            [
                b'T', 0, 0, 0, 26, 0, 1, b'b', 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 23, 0, 4, 0xff, 0xff,
                0xff, 0xff, 0, 1
            ]
        );
        assert_eq!(format_of(&[Format::Binary], 3), Format::Binary);
        assert_eq!(format_of(&[Format::Text, Format::Binary], 1), Format::Binary);
        assert_eq!(format_of(&[], 1), Format::Text);
    }
}
