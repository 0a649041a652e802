//! Splits the bytes of a connection into messages.
//!
//! # Model       a message that is complete in the input is a slice of it; an incomplete one is
//!               gathered here. The places of the cuts make no difference
//! # Limits      at most one message is gathered, and memory is allocated as its bytes arrive, not
//!               by its header's claim

use std::borrow::Cow;

use super::header::{HEADER_BYTES, Header, MESSAGE_BYTES_MAX};

/// The most memory that is allocated for a message before its bytes arrive.
const TAKEN_AHEAD: usize = 64 << 10;

/// A message whose header claims more than the longest message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TooLong(pub u32);

/// A message; a slice of the input if it is complete there.
pub type Message<'a> = (Header, Cow<'a, [u8]>);

/// The received part of an incomplete message: mostly none.
#[derive(Clone, Debug, Default)]
pub struct Assembly(Option<Box<Partial>>);

/// The start of a message.
#[derive(Clone, Debug, Default)]
struct Partial {
    /// Bytes of its header, until that is complete.
    start: Vec<u8>,
    header: Option<Header>,
    body: Vec<u8>,
}

/// The length of a message's body.
fn length_of(header: &Header) -> Result<usize, TooLong> {
    let length = header.length as usize;
    if length > MESSAGE_BYTES_MAX { Err(TooLong(header.length)) } else { Ok(length) }
}

impl Assembly {
    /// Takes the next message off `input`, or all of it if there is none.
    ///
    /// # Errors
    /// [`TooLong`]: what follows cannot be read any more.
    pub fn next<'a>(&mut self, input: &mut &'a [u8]) -> Result<Option<Message<'a>>, TooLong> {
        if self.0.is_none()
            && let Some((header, rest)) = input.split_first_chunk::<HEADER_BYTES>()
        {
            let header = Header::parse(header);
            if let Some((body, rest)) = rest.split_at_checked(length_of(&header)?) {
                *input = rest;
                return Ok(Some((header, Cow::Borrowed(body))));
            }
        }
        if input.is_empty() {
            return Ok(None);
        }
        let mut partial = self.0.take().unwrap_or_default();
        let Some(header) = partial.header(input) else {
            self.0 = Some(partial);
            return Ok(None);
        };
        let length = length_of(&header)?;
        let body = &mut partial.body;
        if body.is_empty() {
            if let Some((whole, rest)) = input.split_at_checked(length) {
                *input = rest;
                return Ok(Some((header, Cow::Borrowed(whole))));
            }
            body.reserve(length.min(TAKEN_AHEAD));
        }
        let (here, rest) = input.split_at((length - body.len()).min(input.len()));
        body.extend_from_slice(here);
        *input = rest;
        if body.len() < length {
            self.0 = Some(partial);
            return Ok(None);
        }
        // It may wait in a queue whose bound counts its bytes.
        partial.body.shrink_to_fit();
        Ok(Some((header, Cow::Owned(partial.body))))
    }

    /// How much of `input` can be taken before a message that has to wait, and that one's header.
    #[must_use]
    pub fn before(&self, input: &[u8], waits: impl Fn(&Header) -> bool) -> (usize, Option<Header>) {
        let waiting = |header: &Header| (!header.is_map() && waits(header)).then_some(*header);
        let mut at = 0;
        if let Some(partial) = &self.0 {
            let start = &partial.start;
            let header = match partial.header {
                Some(header) => header,
                None if start.len() + input.len() < HEADER_BYTES => return (input.len(), None),
                None => {
                    at = HEADER_BYTES - start.len();
                    let mut bytes = [0; HEADER_BYTES];
                    bytes[..start.len()].copy_from_slice(start);
                    bytes[start.len()..].copy_from_slice(&input[..at]);
                    Header::parse(&bytes)
                }
            };
            if let Some(waits) = waiting(&header) {
                return (0, Some(waits));
            }
            at += (header.length as usize).saturating_sub(partial.body.len());
        }
        while let Some((header, _)) = input.get(at..).and_then(<[u8]>::split_first_chunk) {
            let header = Header::parse(header);
            if let Some(waits) = waiting(&header) {
                return (at, Some(waits));
            }
            at += HEADER_BYTES + header.length as usize;
        }
        (input.len(), None)
    }

    /// Bytes of memory beyond itself.
    #[must_use]
    pub fn memory(&self) -> usize {
        self.0.as_ref().map_or(0, |partial| {
            size_of::<Partial>() + partial.start.capacity() + partial.body.capacity()
        })
    }
}

impl Partial {
    /// Adds bytes to its header, and returns that if it is complete now.
    fn header(&mut self, input: &mut &[u8]) -> Option<Header> {
        if self.header.is_none() {
            let missing = HEADER_BYTES - self.start.len();
            let (here, rest) = input.split_at(missing.min(input.len()));
            self.start.extend_from_slice(here);
            *input = rest;
            self.header = Some(Header::parse(self.start.as_slice().try_into().ok()?));
            self.start = Vec::new();
        }
        self.header
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn message(length: usize, to: u16) -> Vec<u8> {
        let header = Header { sequence: 1, length: length as u32, to, ..Header::default() };
        let mut bytes = header.encode().to_vec();
        bytes.extend((0..length).map(|at| (at * 7 + usize::from(to)) as u8));
        bytes
    }

    fn all(assembly: &mut Assembly, mut input: &[u8]) -> Vec<(u16, Vec<u8>)> {
        let mut found = Vec::new();
        while let Some((header, body)) = assembly.next(&mut input).unwrap() {
            found.push((header.to, body.into_owned()));
        }
        assert!(input.is_empty());
        found
    }

    #[test]
    fn a_message_of_no_bytes_and_one_of_the_most() {
        let mut stream = message(0, 1);
        stream.extend(message(MESSAGE_BYTES_MAX, 2));
        stream.extend(message(0, 3));
        let found = all(&mut Assembly::default(), &stream);
        assert_eq!(
            found.iter().map(|(to, b)| (*to, b.len())).collect::<Vec<_>>(),
            [(1, 0), (2, MESSAGE_BYTES_MAX), (3, 0)]
        );
    }

    #[test]
    fn one_byte_more_than_the_most_is_refused_before_it_comes() {
        let length = MESSAGE_BYTES_MAX as u32 + 1;
        let header = Header { length, ..Header::default() }.encode();
        let mut input = &header[..];
        assert_eq!(Assembly::default().next(&mut input).unwrap_err(), TooLong(length));
    }

    #[test]
    fn a_message_that_came_in_parts_takes_no_more_memory_than_its_bytes() {
        let stream = message(TAKEN_AHEAD + 1, 1);
        let mut assembly = Assembly::default();
        for mut part in stream.chunks(1000) {
            if let Some((_, body)) = assembly.next(&mut part).unwrap() {
                let body = body.into_owned();
                assert!(body.capacity() < body.len() + 64, "{}", body.capacity());
                return;
            }
        }
        panic!("it is not whole");
    }

    #[test]
    fn a_header_that_claims_much_takes_little() {
        let header = Header { length: MESSAGE_BYTES_MAX as u32, ..Header::default() }.encode();
        let mut assembly = Assembly::default();
        assert!(assembly.next(&mut &header[..]).unwrap().is_none());
        assert!(assembly.memory() <= 2 * TAKEN_AHEAD, "{}", assembly.memory());
    }

    proptest! {
        #[test]
        fn cuts_make_no_difference(
            lengths in proptest::collection::vec(0usize..300, 1..8),
            cuts in proptest::collection::vec(1usize..90, 1..60),
        ) {
            let stream: Vec<u8> =
                (0u16..).zip(&lengths).flat_map(|(to, length)| message(*length, to)).collect();
            let whole = all(&mut Assembly::default(), &stream);
            let (mut assembly, mut found, mut rest) = (Assembly::default(), Vec::new(), &stream[..]);
            for cut in cuts.iter().cycle() {
                let (here, after) = rest.split_at((*cut).min(rest.len()));
                found.extend(all(&mut assembly, here));
                rest = after;
                if rest.is_empty() {
                    break;
                }
            }
            prop_assert_eq!(found, whole);
            prop_assert_eq!(assembly.memory(), 0);
        }

        #[test]
        fn what_is_taken_before_a_full_port_ends_where_a_message_to_it_begins(
            messages in proptest::collection::vec((0usize..120, 1u16..4), 1..8),
            cut in 1usize..90,
        ) {
            let stream: Vec<u8> =
                messages.iter().flat_map(|(length, to)| message(*length, *to)).collect();
            let (mut assembly, mut found, mut rest) = (Assembly::default(), Vec::new(), &stream[..]);
            loop {
                let here = &rest[..cut.min(rest.len())];
                let (count, full) = assembly.before(here, |header| header.to == 3);
                prop_assert!(count <= here.len());
                found.extend(all(&mut assembly, &here[..count]).into_iter().map(|(to, _)| to));
                rest = &rest[count..];
                if full.is_some() || rest.is_empty() {
                    break;
                }
                prop_assert!(count > 0);
            }
            let wanted: Vec<u16> =
                messages.iter().map(|(_, to)| *to).take_while(|to| *to != 3).collect();
            prop_assert_eq!(found, wanted);
        }

        #[test]
        fn any_bytes_do_no_harm(bytes: Vec<u8>, cut in 1usize..60) {
            let mut assembly = Assembly::default();
            'stream: for here in bytes.chunks(cut) {
                let mut input = here;
                loop {
                    match assembly.next(&mut input) {
                        Ok(Some(_)) => {}
                        Ok(None) => break,
                        Err(_) => break 'stream,
                    }
                }
                prop_assert!(assembly.memory() <= 2 * TAKEN_AHEAD + MESSAGE_BYTES_MAX);
            }
        }
    }
}
