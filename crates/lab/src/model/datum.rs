//! A value as it goes over the wire, in text or binary.

use super::error::PgError;
use super::portal::Column;

/// A value as it goes over the wire in text or binary.
pub(super) fn encode(value: &str, column: &Column, binary: bool) -> Vec<u8> {
    use super::sql::Type;
    let text = || value.as_bytes().to_vec();
    if !binary {
        return text();
    }
    match column.kind {
        Type::Int4 => value.parse::<i32>().map_or_else(|_| text(), |n| n.to_be_bytes().to_vec()),
        Type::Int8 => value.parse::<i64>().map_or_else(|_| text(), |n| n.to_be_bytes().to_vec()),
        Type::Bool => vec![u8::from(value == "t")],
        Type::Text | Type::Name | Type::Void => text(),
    }
}

/// The reverse of [`encode`], with the server's complaints.
pub(super) fn decode(
    value: &[u8],
    kind: super::sql::Type,
    binary: bool,
    number: usize,
) -> Result<String, PgError> {
    use super::sql::Type;
    let integer = |name: &str, text: &str| {
        PgError::error("22P02", format!("invalid input syntax for type {name}: \"{text}\""))
    };
    if binary {
        let wrong = || {
            let message = format!("incorrect binary data format in bind parameter {number}");
            PgError::error("22P03", message)
        };
        return match kind {
            Type::Int4 => {
                let bytes = value.try_into().map_err(|_| wrong())?;
                Ok(i32::from_be_bytes(bytes).to_string())
            }
            Type::Int8 => {
                let bytes = value.try_into().map_err(|_| wrong())?;
                Ok(i64::from_be_bytes(bytes).to_string())
            }
            _ => String::from_utf8(value.to_vec()).map_err(|_| wrong()),
        };
    }
    let text = String::from_utf8(value.to_vec())
        .map_err(|_| PgError::error("22021", "invalid byte sequence for encoding \"UTF8\""))?;
    match kind {
        Type::Int4 => {
            text.trim().parse::<i32>().map(|n| n.to_string()).map_err(|_| integer("integer", &text))
        }
        Type::Int8 => {
            text.trim().parse::<i64>().map(|n| n.to_string()).map_err(|_| integer("bigint", &text))
        }
        _ => Ok(text),
    }
}
