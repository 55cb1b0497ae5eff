//! Memory for records on their way: aligned as O_DIRECT asks, reserved once and used again.

/// The alignment that every direct-I/O device takes.
const ALIGN_BYTES: usize = 4096;

/// Bytes that begin at a multiple of 4096.
#[derive(Debug)]
pub(crate) struct Buffer {
    memory: Vec<u8>,
    start: usize,
    length: usize,
}

impl Buffer {
    pub(crate) fn new(length: usize) -> Self {
        let memory = vec![0; length + ALIGN_BYTES];
        // The heap memory stays where it is when the vector moves.
        let start = memory.as_ptr().align_offset(ALIGN_BYTES).min(ALIGN_BYTES);
        Self {
            memory,
            start,
            length,
        }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.memory[self.start..][..self.length]
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..][..self.length]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_is_aligned_wherever_it_moves() {
        let buffers: Vec<_> = (1..20).map(|i| Buffer::new(i * 512)).collect();
        for (i, mut buffer) in buffers.into_iter().enumerate() {
            assert_eq!(buffer.bytes().as_ptr() as usize % ALIGN_BYTES, 0);
            assert_eq!(buffer.bytes_mut().len(), (i + 1) * 512);
        }
    }
}
