//! Choices taken from the front of an input; what is left is text, so that a fuzzer may edit it as such.

/// An input, used up from the front.
#[derive(Clone, Copy)]
pub(crate) struct Cursor<'a>(pub(crate) &'a [u8]);

impl<'a> Cursor<'a> {
    /// The next byte; 0 when there is none.
    pub(crate) fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *first
    }

    /// One of these, by the next byte.
    pub(crate) fn one<T: Copy, const N: usize>(&mut self, of: [T; N]) -> T {
        of[usize::from(self.byte()) % N]
    }

    /// Up to the next line end, which is used up too.
    pub(crate) fn line(&mut self) -> &'a [u8] {
        let at = self.0.iter().position(|byte| *byte == b'\n').unwrap_or(self.0.len());
        let (line, rest) = self.0.split_at(at);
        self.0 = rest.get(1..).unwrap_or_default();
        line
    }
}

/// Cuts bytes into pieces: of one byte each for 0, else of one to that many bytes, always in the same way.
pub(crate) fn pieces(mut bytes: &[u8], most: u8) -> impl Iterator<Item = &[u8]> {
    let mut random = u32::from(most) | 1;
    std::iter::from_fn(move || {
        // Numerical Recipes' generator.
        random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let len = 1 + (random >> 16) as usize % usize::from(most.max(1));
        let (piece, rest) = bytes.split_at(len.min(bytes.len()));
        bytes = rest;
        (!piece.is_empty()).then_some(piece)
    })
}
