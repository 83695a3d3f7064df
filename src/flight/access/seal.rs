//! What the server gives to clients and must know again: tickets and session tokens, signed.

use argon2::password_hash::rand_core::{OsRng, RngCore};
use hmac::{Hmac, KeyInit, Mac};
use prost::{Message, Oneof};
use sha2::Sha256;

const MAC_BYTES: usize = 32;

/// What is signed. Kinds are told apart by their tags: none passes for another.
#[derive(Clone, PartialEq, Message)]
struct Envelope {
    #[prost(oneof = "Sealed", tags = "1, 2, 3")]
    sealed: Option<Sealed>,
}

/// What the server knows again.
#[derive(Clone, PartialEq, Oneof)]
pub(in crate::flight) enum Sealed {
    #[prost(message, tag = "1")]
    Query(QueryTicket),
    #[prost(message, tag = "2")]
    Stream(StreamTicket),
    #[prost(message, tag = "3")]
    Token(SessionToken),
}

/// A query, by the ids of its session and its own.
#[derive(Clone, PartialEq, Message)]
pub(in crate::flight) struct QueryTicket {
    #[prost(bytes = "vec", tag = "1")]
    pub(in crate::flight) session: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    pub(in crate::flight) query: Vec<u8>,
}

/// A stream, by its id, and which of its readers it is for.
#[derive(Clone, PartialEq, Message)]
pub(in crate::flight) struct StreamTicket {
    #[prost(bytes = "vec", tag = "1")]
    pub(in crate::flight) stream: Vec<u8>,
    #[prost(uint32, optional, tag = "2")]
    pub(in crate::flight) reader: Option<u32>,
}

/// Who logged in, and the session that the log-in began.
#[derive(Clone, PartialEq, Message)]
pub(in crate::flight) struct SessionToken {
    /// Seconds since 1970 after which it is good no more.
    #[prost(uint64, tag = "1")]
    pub(super) expires_s: u64,
    #[prost(string, tag = "2")]
    pub(super) session_key: String,
    #[prost(string, tag = "3")]
    pub(super) name: String,
    #[prost(string, tag = "4")]
    pub(super) role: String,
    #[prost(uint64, tag = "5")]
    pub(super) mark: u64,
}

/// The hash of what was signed, for whoever keeps nothing else of it.
pub(super) type Signature = [u8; MAC_BYTES];

/// Signs with a key of this process: what it has signed is worth nothing to another one.
///
/// The signature is HMAC-SHA-256 (RFC 2104), compared in constant time.
pub(in crate::flight) struct Seal {
    /// As long as a block of the hash.
    key: [u8; 64],
}

impl Seal {
    /// With a new random key.
    pub(in crate::flight) fn new() -> Self {
        let mut key = [0; 64];
        OsRng.fill_bytes(&mut key);
        Self { key }
    }

    /// Signs something to be given away.
    pub(in crate::flight) fn close(&self, sealed: Sealed) -> Vec<u8> {
        self.sign(&Envelope { sealed: Some(sealed) }.encode_to_vec())
    }

    /// What was signed here, and nothing of what was not.
    pub(in crate::flight) fn open(&self, signed: &[u8]) -> Option<Sealed> {
        Envelope::decode(self.verify(signed)?).ok()?.sealed
    }

    /// The text, and its signature.
    fn sign(&self, text: &[u8]) -> Vec<u8> {
        let mut signed = text.to_vec();
        signed.extend(self.mac(text).finalize().into_bytes());
        signed
    }

    /// The text of what was signed here, and nothing of what was not.
    fn verify<'a>(&self, signed: &'a [u8]) -> Option<&'a [u8]> {
        let (text, signature) = signed.split_at_checked(signed.len().checked_sub(MAC_BYTES)?)?;
        self.mac(text).verify_slice(signature).ok().map(|()| text)
    }

    /// The signature of these parts, which that of no others is.
    pub(super) fn signature_of(&self, parts: &[&[u8]]) -> Signature {
        let mut text = vec![];
        for part in parts {
            text.extend((part.len() as u64).to_le_bytes());
            text.extend(*part);
        }
        self.mac(&text).finalize().into_bytes().into()
    }

    fn mac(&self, text: &[u8]) -> Hmac<Sha256> {
        let mut mac = <Hmac<Sha256> as KeyInit>::new(&self.key.into());
        mac.update(text);
        mac
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_signed_is_known_again() {
        let seal = Seal::new();
        let signed = seal.sign(b"a ticket");
        assert_eq!(seal.verify(&signed), Some(&b"a ticket"[..]));
        for at in 0..signed.len() {
            let mut forged = signed.clone();
            forged[at] ^= 1;
            assert_eq!(seal.verify(&forged), None, "byte {at} was changed");
        }
        assert_eq!(seal.verify(&signed[..signed.len() - 1]), None);
        assert_eq!(seal.verify(b""), None);
        assert_eq!(Seal::new().verify(&signed), None, "another process");
        let of = |parts: &[&[u8]]| seal.signature_of(parts);
        assert_eq!(of(&[b"ab", b"c"]), of(&[b"ab", b"c"]));
        assert_ne!(of(&[b"ab", b"c"]), of(&[b"a", b"bc"]));
    }

    #[test]
    fn a_ticket_of_one_kind_is_none_of_another() {
        let seal = Seal::new();
        let query = QueryTicket { session: vec![1; 16], query: vec![2; 16] };
        let stream = StreamTicket { stream: vec![1; 16], reader: Some(2) };
        let token = SessionToken { expires_s: 1, name: "ada".to_owned(), ..Default::default() };
        for sealed in [Sealed::Query(query), Sealed::Stream(stream), Sealed::Token(token)] {
            assert_eq!(seal.open(&seal.close(sealed.clone())), Some(sealed));
        }
        assert_eq!(seal.open(&seal.sign(b"")), None, "signed, and nothing in it");
        assert_eq!(seal.open(&seal.sign(b"no message")), None);
    }
}
