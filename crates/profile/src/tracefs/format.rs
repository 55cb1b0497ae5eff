//! The kernel's own description of its events: where each field lies in a record.
//!
//! Source: `events/*/*/format` and `events/header_page` of tracefs (Documentation/trace/events.rst §2). Offsets differ
//! between kernels, so none is assumed.

use std::collections::BTreeMap;

/// A field of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    /// Bytes from the start of the record.
    pub offset: usize,
    /// Bytes.
    pub size: usize,
}

impl Field {
    /// The field's value, zero-extended; fields are little-endian as the machine is. `None` if the record is too short.
    pub fn read(&self, record: &[u8]) -> Option<u64> {
        let bytes = self.bytes(record)?;
        let mut value = [0; 8];
        value[..self.size.min(8)].copy_from_slice(&bytes[..self.size.min(8)]);
        Some(u64::from_ne_bytes(value))
    }

    /// The field's bytes.
    pub fn bytes<'a>(&self, record: &'a [u8]) -> Option<&'a [u8]> {
        record.get(self.offset..self.offset.checked_add(self.size)?)
    }
}

/// An event of the kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Format {
    /// First field of its records (`common_type`).
    pub id: u16,
    fields: BTreeMap<String, Field>,
}

impl Format {
    /// Parses a `format` file. `None` if it has no id.
    pub fn parse(text: &str) -> Option<Self> {
        let id = text
            .lines()
            .find_map(|line| line.strip_prefix("ID:"))
            .and_then(|id| id.trim().parse().ok())?;
        let fields = text.lines().filter_map(parse_field).collect();
        Some(Self { id, fields })
    }

    /// A field by its name.
    pub fn field(&self, name: &str) -> Option<Field> {
        self.fields.get(name).copied()
    }
}

/// The layout of a page of the ring buffer (`header_page`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageLayout {
    /// Offset of the page's time.
    pub timestamp: Field,
    /// Offset of the number of bytes in use, with flags above it.
    pub commit: Field,
    /// Offset of the records.
    pub data: Field,
}

impl PageLayout {
    /// Parses `header_page`.
    pub fn parse(text: &str) -> Option<Self> {
        let fields: BTreeMap<_, _> = text.lines().filter_map(parse_field).collect();
        Some(Self {
            timestamp: *fields.get("timestamp")?,
            commit: *fields.get("commit")?,
            data: *fields.get("data")?,
        })
    }

    /// Bytes of a page.
    pub fn page_bytes(&self) -> usize {
        self.data.offset + self.data.size
    }
}

/// `field:TYPE NAME; offset:N; size:N; signed:N;`
fn parse_field(line: &str) -> Option<(String, Field)> {
    let mut parts = line.trim().strip_prefix("field:")?.split(';');
    let declaration = parts.next()?;
    let name = declaration.split_whitespace().last()?;
    let name = name.split('[').next()?.trim_start_matches('*');
    let (mut offset, mut size) = (None, None);
    for part in parts {
        match part.trim().split_once(':') {
            Some(("offset", value)) => offset = value.parse().ok(),
            Some(("size", value)) => size = value.parse().ok(),
            _ => {}
        }
    }
    let field = Field {
        offset: offset?,
        size: size?,
    };
    Some((name.to_string(), field))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ISSUE: &str = "name: block_rq_issue\nID: 1120\nformat:\n\
        \tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;\n\
        \tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;\n\n\
        \tfield:dev_t dev;\toffset:8;\tsize:4;\tsigned:0;\n\
        \tfield:sector_t sector;\toffset:16;\tsize:8;\tsigned:0;\n\
        \tfield:char rwbs[10];\toffset:34;\tsize:10;\tsigned:0;\n\
        \tfield:void * req;\toffset:48;\tsize:8;\tsigned:0;\n\n\
        print fmt: \"%d,%d\", field:REC->dev\n";

    #[test]
    fn fields_are_found_by_name() {
        let format = Format::parse(ISSUE).expect("well formed");
        assert_eq!(format.id, 1120);
        assert_eq!(format.field("sector"), Some(Field { offset: 16, size: 8 }));
        assert_eq!(format.field("rwbs"), Some(Field { offset: 34, size: 10 }));
        assert_eq!(format.field("req"), Some(Field { offset: 48, size: 8 }));
        assert_eq!(format.field("nothing"), None);
    }

    #[test]
    fn the_layout_of_pages_is_parsed() {
        let text = "\tfield: u64 timestamp;\toffset:0;\tsize:8;\tsigned:0;\n\
            \tfield: local_t commit;\toffset:8;\tsize:8;\tsigned:1;\n\
            \tfield: int overwrite;\toffset:8;\tsize:1;\tsigned:1;\n\
            \tfield: char data;\toffset:16;\tsize:4080;\tsigned:0;\n";
        let layout = PageLayout::parse(text).expect("well formed");
        assert_eq!((layout.commit.offset, layout.page_bytes()), (8, 4096));
    }

    #[test]
    fn short_records_have_no_value() {
        let field = Field { offset: 16, size: 8 };
        assert_eq!(field.read(&[0; 23]), None);
        assert_eq!(field.read(&[1; 24]), Some(0x0101_0101_0101_0101));
        let far = Field {
            offset: usize::MAX,
            size: 8,
        };
        assert_eq!(far.read(&[0; 24]), None);
    }
}
