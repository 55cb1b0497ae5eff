//! Plain values of the kernel's structures: integers, arrays of them, and structures of these, read from bytes and
//! written to bytes in the machine's own order. No pointers, and no padding that has no name.

/// A value that is its bytes.
pub trait Plain: Sized {
    /// How many bytes it has.
    const BYTES: usize;

    /// The value at the beginning of `bytes`; `None` if there are too few.
    fn read(bytes: &[u8]) -> Option<Self>;

    /// Writes the value to the beginning of `bytes`; `None` if there is too little room, and then nothing is written.
    fn write(&self, bytes: &mut [u8]) -> Option<()>;
}

macro_rules! integers {
    ($($integer:ty)+) => {$(
        impl Plain for $integer {
            const BYTES: usize = size_of::<$integer>();

            #[inline]
            fn read(bytes: &[u8]) -> Option<Self> {
                Some(Self::from_ne_bytes(*bytes.first_chunk()?))
            }

            #[inline]
            fn write(&self, bytes: &mut [u8]) -> Option<()> {
                *bytes.first_chunk_mut()? = self.to_ne_bytes();
                Some(())
            }
        }
    )+};
}

integers!(u8 u16 u32 u64 i32 i64);

impl<T: Plain + Copy + Default, const N: usize> Plain for [T; N] {
    const BYTES: usize = N * T::BYTES;

    #[inline]
    fn read(bytes: &[u8]) -> Option<Self> {
        let bytes = bytes.get(..Self::BYTES)?;
        let mut values = [T::default(); N];
        for (value, bytes) in values.iter_mut().zip(bytes.chunks_exact(T::BYTES)) {
            *value = T::read(bytes)?;
        }
        Some(values)
    }

    #[inline]
    fn write(&self, bytes: &mut [u8]) -> Option<()> {
        let bytes = bytes.get_mut(..Self::BYTES)?;
        for (value, bytes) in self.iter().zip(bytes.chunks_exact_mut(T::BYTES)) {
            value.write(bytes)?;
        }
        Some(())
    }
}

/// Writes a value to a place that has room for it; how many bytes it has.
pub(super) fn put<T: Plain>(value: &T, place: &mut [u8]) -> usize {
    value
        .write(place)
        .expect("a head has room for the largest structure");
    T::BYTES
}

/// A field of a structure, for the comparison with the kernel's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    /// Its name in C.
    pub name: &'static str,
    /// Bytes before it.
    pub offset: usize,
    /// How many bytes it has.
    pub bytes: usize,
}

/// A structure of the kernel's header, for the comparison with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Its name in C, without `struct`.
    pub name: &'static str,
    /// How many bytes it has.
    pub bytes: usize,
    /// Its fields in their order.
    pub fields: &'static [Field],
}

/// Makes structures of the kernel's. A field is called as in C, unless a name in C follows.
macro_rules! layouts {
    ($($(#[$meta:meta])* $name:ident = $c:literal { $($field:ident $(as $field_c:literal)?: $type:ty,)+ })+) => {
        $(
            $(#[$meta])*
            #[repr(C)]
            #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
            #[allow(missing_docs, reason = "the fields are the kernel's, and so are their names")]
            pub struct $name { $(pub $field: $type,)+ }

            impl $name {
                /// Its layout, for the comparison with the kernel's header.
                pub const LAYOUT: Layout = Layout {
                    name: $c,
                    bytes: size_of::<Self>(),
                    fields: &[$(Field {
                        name: layouts!(@name $field $($field_c)?),
                        offset: core::mem::offset_of!(Self, $field),
                        bytes: size_of::<$type>(),
                    },)+],
                };
            }

            impl Plain for $name {
                const BYTES: usize = size_of::<Self>();

                #[inline]
                fn read(bytes: &[u8]) -> Option<Self> {
                    let bytes = bytes.get(..Self::BYTES)?;
                    Some(Self { $($field: Plain::read(&bytes[core::mem::offset_of!(Self, $field)..])?,)+ })
                }

                #[inline]
                fn write(&self, bytes: &mut [u8]) -> Option<()> {
                    // A structure without padding is the sum of its fields: no byte keeps what was there before.
                    const { assert!(0 $(+ <$type as Plain>::BYTES)+ == size_of::<$name>()) };
                    let bytes = bytes.get_mut(..Self::BYTES)?;
                    $(self.$field.write(&mut bytes[core::mem::offset_of!(Self, $field)..])?;)+
                    Some(())
                }
            }
        )+

        /// Every structure, for the comparison with the kernel's header.
        pub const LAYOUTS: &[Layout] = &[$($name::LAYOUT,)+];
    };
    (@name $field:ident) => { stringify!($field) };
    (@name $field:ident $field_c:literal) => { $field_c };
}

pub(crate) use layouts;
