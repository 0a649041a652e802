//! Messages of the PostgreSQL protocol, as the model reads and writes them.
//!
//! Written apart from `hawser-pooler`'s own codec on purpose: a mistake in one of the two shows as
//! a difference instead of hiding in both.
//!
//! # Model       tag (1 byte, absent at startup), length (4 bytes, itself included), body
//! # Limits      a message is held whole; simulated ones are small

use super::error::PgError;

/// Longest message that the model takes; PostgreSQL's own limit for large ones is 1 GB.
pub const MESSAGE_BYTES_MAX: usize = 64 << 20;
/// Longest startup packet, as `MAX_STARTUP_PACKET_LENGTH` in PostgreSQL's `pqcomm.h`.
pub const STARTUP_BYTES_MAX: usize = 10_000;

/// A whole message with its tag; startup packets have the tag 0.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// The type byte, 0 for packets that have none.
    pub tag: u8,
    /// What follows the length.
    pub body: Vec<u8>,
}

impl Message {
    /// The message as it goes over the wire.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.body.len() + 5);
        if self.tag != 0 {
            out.push(self.tag);
        }
        out.extend_from_slice(&length_field(self.body.len()));
        out.extend_from_slice(&self.body);
        out
    }
}

fn length_field(body_bytes: usize) -> [u8; 4] {
    i32::try_from(body_bytes + 4).expect("below MESSAGE_BYTES_MAX").to_be_bytes()
}

/// Why the bytes are not a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BadFrame {
    /// The length field is below 4 or above the limit.
    Length(i64),
}

/// Cuts the first whole message off `buffer`; `None` where more bytes are needed.
///
/// # Errors
/// [`BadFrame`] where no further byte can be trusted.
pub fn cut(buffer: &mut Vec<u8>, tagged: bool) -> Result<Option<Message>, BadFrame> {
    let head = usize::from(tagged);
    let Some(field) = buffer.get(head..head + 4) else { return Ok(None) };
    let length = i32::from_be_bytes([field[0], field[1], field[2], field[3]]);
    let limit = if tagged { MESSAGE_BYTES_MAX } else { STARTUP_BYTES_MAX };
    let whole = usize::try_from(length).ok().filter(|&length| (4..=limit).contains(&length));
    let Some(whole) = whole else { return Err(BadFrame::Length(i64::from(length))) };
    if buffer.len() < head + whole {
        return Ok(None);
    }
    let tag = if tagged { buffer[0] } else { 0 };
    let body = buffer[head + 4..head + whole].to_vec();
    buffer.drain(..head + whole);
    Ok(Some(Message { tag, body }))
}

/// Builds the body of one message.
#[derive(Debug, Default, Clone)]
pub struct Body(Vec<u8>);

impl Body {
    /// An empty body.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends one byte.
    #[must_use]
    pub fn byte(mut self, value: u8) -> Self {
        self.0.push(value);
        self
    }

    /// Appends a 16-bit number.
    #[must_use]
    pub fn int16(mut self, value: usize) -> Self {
        let value = u16::try_from(value).expect("the model counts to 65535");
        self.0.extend_from_slice(&value.to_be_bytes());
        self
    }

    /// Appends a 32-bit number.
    #[must_use]
    pub fn int32(mut self, value: i32) -> Self {
        self.0.extend_from_slice(&value.to_be_bytes());
        self
    }

    /// Appends text and its terminating NUL.
    #[must_use]
    pub fn text(mut self, value: &str) -> Self {
        self.0.extend_from_slice(value.as_bytes());
        self.0.push(0);
        self
    }

    /// Appends bytes as they are.
    #[must_use]
    pub fn bytes(mut self, value: &[u8]) -> Self {
        self.0.extend_from_slice(value);
        self
    }

    /// Appends a value with its length, -1 for NULL.
    #[must_use]
    pub fn value(self, value: Option<&[u8]>) -> Self {
        match value {
            None => self.int32(-1),
            Some(bytes) => {
                let length = i32::try_from(bytes.len()).expect("below MESSAGE_BYTES_MAX");
                self.int32(length).bytes(bytes)
            }
        }
    }

    /// The finished message.
    #[must_use]
    pub fn message(self, tag: u8) -> Message {
        Message { tag, body: self.0 }
    }
}

/// Reads the body of one message, with the server's own complaints.
#[derive(Debug)]
pub struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    /// Reads `body` from its beginning.
    #[must_use]
    pub fn new(body: &'a [u8]) -> Self {
        Self { rest: body }
    }

    /// The next `count` bytes.
    ///
    /// # Errors
    /// 08P01 where there are fewer.
    pub fn bytes(&mut self, count: usize) -> Result<&'a [u8], PgError> {
        if count > self.rest.len() {
            return Err(PgError::error("08P01", "insufficient data left in message"));
        }
        let (taken, rest) = self.rest.split_at(count);
        self.rest = rest;
        Ok(taken)
    }

    /// The next byte.
    ///
    /// # Errors
    /// 08P01 `no data left in message`.
    pub fn byte(&mut self) -> Result<u8, PgError> {
        let (&first, rest) = self
            .rest
            .split_first()
            .ok_or_else(|| PgError::error("08P01", "no data left in message"))?;
        self.rest = rest;
        Ok(first)
    }

    /// A 16-bit number.
    ///
    /// # Errors
    /// 08P01 where the body ends before.
    pub fn int16(&mut self) -> Result<i16, PgError> {
        let bytes = self.bytes(2)?;
        Ok(i16::from_be_bytes([bytes[0], bytes[1]]))
    }

    /// A 32-bit number.
    ///
    /// # Errors
    /// 08P01 where the body ends before.
    pub fn int32(&mut self) -> Result<i32, PgError> {
        let bytes = self.bytes(4)?;
        Ok(i32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
    }

    /// Text up to its NUL.
    ///
    /// # Errors
    /// 08P01 where no NUL follows; 22021 where it is not UTF-8.
    pub fn text(&mut self) -> Result<String, PgError> {
        let end = self
            .rest
            .iter()
            .position(|&byte| byte == 0)
            .ok_or_else(|| PgError::error("08P01", "invalid string in message"))?;
        let text = self.bytes(end)?;
        self.byte()?;
        String::from_utf8(text.to_vec())
            .map_err(|_| PgError::error("22021", "invalid byte sequence for encoding \"UTF8\""))
    }

    /// A value with its length; `None` for NULL.
    ///
    /// # Errors
    /// 08P01 where the body ends before.
    pub fn value(&mut self) -> Result<Option<Vec<u8>>, PgError> {
        match self.int32()? {
            -1 => Ok(None),
            length => {
                let length = usize::try_from(length).unwrap_or(usize::MAX);
                Ok(Some(self.bytes(length)?.to_vec()))
            }
        }
    }

    /// What has not been read yet.
    #[must_use]
    pub fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// Nothing may be left.
    ///
    /// # Errors
    /// 08P01 `invalid message format` where something is.
    pub fn end(&self) -> Result<(), PgError> {
        if self.rest.is_empty() {
            Ok(())
        } else {
            Err(PgError::error("08P01", "invalid message format"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_comes_whole_or_not_at_all() {
        let wire = Body::new().text("select 1").message(b'Q').encode();
        for split in 0..wire.len() {
            let mut buffer = wire[..split].to_vec();
            assert_eq!(cut(&mut buffer, true), Ok(None), "after {split} bytes");
            assert_eq!(buffer.len(), split, "nothing is lost");
        }
        let mut buffer = [wire.clone(), vec![b'S']].concat();
        let message = cut(&mut buffer, true).expect("valid").expect("whole");
        assert_eq!((message.tag, message.encode()), (b'Q', wire));
        assert_eq!(buffer, b"S");
    }

    #[test]
    fn a_length_below_its_own_size_is_refused() {
        assert_eq!(cut(&mut b"Q\0\0\0\x03".to_vec(), true), Err(BadFrame::Length(3)));
        assert_eq!(cut(&mut b"Q\xff\xff\xff\xff".to_vec(), true), Err(BadFrame::Length(-1)));
    }
}
