//! Literals of SQL that every server reads alike.

/// A literal of the server's own bytes, in ASCII (`xehexesc`, scan.l: its bytes are not converted,
/// and read in the database's encoding). Two digits each: a third would not be read as one of them.
pub(crate) fn write_value(value: &[u8], out: &mut Vec<u8>) {
    if value.is_ascii() {
        return write_string(value, out);
    }
    out.extend_from_slice(b"E'");
    for &byte in value {
        match byte {
            b'\'' | b'\\' => out.extend_from_slice(&[byte, byte]),
            0..0x80 => out.push(byte),
            _ => {
                out.extend_from_slice(b"\\x");
                write_hex(byte, out);
            }
        }
    }
    out.push(b'\'');
}

fn write_hex(byte: u8, out: &mut Vec<u8>) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    out.push(DIGITS[usize::from(byte >> 4)]);
    out.push(DIGITS[usize::from(byte & 15)]);
}

/// A literal of text in the `client_encoding` in force. Only a backslash reads differently under
/// standard_conforming_strings; a text with one is written as E'', whose reading is fixed.
pub(crate) fn write_string(value: &[u8], out: &mut Vec<u8>) {
    if value.contains(&b'\\') {
        out.push(b'E');
    }
    out.push(b'\'');
    for &byte in value {
        if byte == b'\'' || byte == b'\\' {
            out.push(byte);
        }
        out.push(byte);
    }
    out.push(b'\'');
}
