//! What the server gives to clients and must know again: tickets and session tokens, signed.

use argon2::password_hash::rand_core::{OsRng, RngCore};
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

const MAC_BYTES: usize = 32;

/// A signature alone.
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

    /// The text, and its signature.
    pub(in crate::flight) fn sign(&self, text: &[u8]) -> Vec<u8> {
        let mut signed = text.to_vec();
        signed.extend(self.mac(text).finalize().into_bytes());
        signed
    }

    /// The text of what was signed here, and nothing of what was not.
    pub(in crate::flight) fn verify<'a>(&self, signed: &'a [u8]) -> Option<&'a [u8]> {
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
}
