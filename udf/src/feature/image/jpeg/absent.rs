//! In place of libjpeg-turbo where Forebay is built without it: refuses every image.

use std::convert::Infallible;
use std::marker::PhantomData;

use super::region::{Colours, Region};

/// In builds without libjpeg-turbo: none can be made.
#[derive(Debug)]
pub(super) struct Decompressor<'a> {
    never: Infallible,
    bytes: PhantomData<&'a [u8]>,
}

impl<'a> Decompressor<'a> {
    pub(super) fn open(_bytes: &'a [u8]) -> Result<Self, String> {
        Err("this Forebay was built without a decoder of JPEG images; build it with the cargo \
             feature `jpeg`, which needs CMake"
            .to_owned())
    }

    pub(super) fn bytes(&self) -> &'a [u8] {
        match self.never {}
    }

    pub(super) fn size(&self) -> (u32, u32) {
        match self.never {}
    }

    pub(super) fn colours(&self) -> Colours {
        match self.never {}
    }

    pub(super) fn block_width(&self) -> Option<u32> {
        match self.never {}
    }

    pub(super) fn decode(
        &mut self,
        _divisor: u32,
        _region: Region,
        _pixels: &mut [u8],
    ) -> Result<(), String> {
        match self.never {}
    }
}
