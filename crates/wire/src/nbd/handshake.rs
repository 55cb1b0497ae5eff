//! The handshake: fixed newstyle negotiation and its options (proto.md "Fixed newstyle negotiation").
//!
//! Control path: it may allocate, within bounds. Options whose data is longer than [`OPTION_BYTES_MAX`] are drained
//! and refused; while more than [`CONTROL_BYTES_MAX`] of answers are unsent, no further option is taken.

use base::limits::{PAGE_BYTES, SECTOR_BYTES};

use super::proto::{
    EXPORT_NAME_PADDING_BYTES, HELLO_MAGIC, OPTION_MAGIC, OPTION_REPLY_MAGIC, STRING_BYTES_MAX,
    handshake_flags, info, option, option_reply, transmission_flags as transmission, u16_at, u32_at, u64_at,
};
use super::{CloseReason, Export, Flow, Opened, Phase, Session};

/// Longest option data that is looked at; longer is answered with `NBD_REP_ERR_TOO_BIG`. Enough for a name, a query
/// and 4096 information types, each as long as the protocol lets them be.
const OPTION_BYTES_MAX: u32 = 4 * STRING_BYTES_MAX as u32;
/// Unsent answers beyond which the client has to read before it may ask on: a client cannot make the server keep a
/// thousand listings.
const CONTROL_BYTES_MAX: u64 = 64 << 10;
/// The metadata context (proto.md "Metadata querying").
const CONTEXT: &[u8] = b"base:allocation";
/// Its number in replies.
pub(super) const CONTEXT_ID: u32 = 1;

impl Session {
    pub(super) fn greet(&mut self) {
        self.output.put_control(&HELLO_MAGIC.to_be_bytes());
        self.output.put_control(&OPTION_MAGIC.to_be_bytes());
        self.output.put_control(&handshake_flags::ALL.to_be_bytes());
    }

    /// The client's flags. A client that does not confirm the fixed negotiation is served all the same.
    pub(super) fn client_flags(&mut self) -> Flow {
        let flags = u32_at(&self.scratch, 0);
        if flags & !u32::from(handshake_flags::ALL) != 0 {
            self.close(CloseReason::ClientFlags);
            return Flow::Again;
        }
        self.no_zeroes = flags & u32::from(handshake_flags::NO_ZEROES) != 0;
        self.phase = Phase::OptionHeader;
        Flow::Again
    }

    pub(super) fn option_header(&mut self) -> Flow {
        if self.output.pending_bytes() > CONTROL_BYTES_MAX {
            return Flow::Blocked;
        }
        if u64_at(&self.scratch, 0) != OPTION_MAGIC {
            self.close(CloseReason::Magic);
            return Flow::Again;
        }
        let (option, length) = (u32_at(&self.scratch, 8), u32_at(&self.scratch, 12));
        self.option_data.clear();
        self.phase = if length > OPTION_BYTES_MAX {
            Phase::OptionSkip { option, left: length }
        } else {
            Phase::OptionData {
                option,
                length: length as usize,
            }
        };
        Flow::Again
    }

    pub(super) fn option_skip(&mut self, bytes: &[u8], option: u32, left: u32) -> (usize, Flow) {
        if option == option::EXPORT_NAME {
            self.close(CloseReason::UnknownExport);
            return (0, Flow::Again);
        }
        let step = bytes.len().min(left as usize);
        if step < left as usize {
            self.phase = Phase::OptionSkip {
                option,
                left: left - step as u32,
            };
            return (step, Flow::Starved);
        }
        self.phase = Phase::OptionHeader;
        self.option_error(option, option_reply::ERR_TOO_BIG, "the option is too long");
        (step, Flow::Again)
    }

    pub(super) fn option_data(
        &mut self,
        bytes: &[u8],
        option: u32,
        length: usize,
        exports: &[Export],
    ) -> (usize, Flow) {
        let step = bytes.len().min(length - self.option_data.len());
        self.option_data.extend_from_slice(&bytes[..step]);
        if self.option_data.len() < length {
            return (step, Flow::Starved);
        }
        let data = core::mem::take(&mut self.option_data);
        self.phase = Phase::OptionHeader;
        self.option(option, &data, exports);
        (step, Flow::Again)
    }

    fn option(&mut self, option: u32, data: &[u8], exports: &[Export]) {
        match option {
            option::ABORT => {
                self.option_reply(option, option_reply::ACK, &[]);
                self.close(CloseReason::Aborted);
            }
            option::EXPORT_NAME => self.export_name(data, exports),
            _ if self.stopping => {
                self.option_error(option, option_reply::ERR_SHUTDOWN, "the server is stopping")
            }
            option::LIST => self.list(data, exports),
            option::INFO | option::GO => self.info(option, data, exports),
            option::STRUCTURED_REPLY if data.is_empty() => {
                self.structured = true;
                self.option_reply(option, option_reply::ACK, &[]);
            }
            option::STRUCTURED_REPLY => {
                self.option_error(option, option_reply::ERR_INVALID, "no data is expected")
            }
            option::LIST_META_CONTEXT | option::SET_META_CONTEXT => self.meta_context(option, data, exports),
            _ => self.option_error(option, option_reply::ERR_UNSUP, "the option is not supported"),
        }
    }

    fn export_name(&mut self, name: &[u8], exports: &[Export]) {
        let Some(export) = find(exports, name).filter(|_| !self.stopping) else {
            return self.close(CloseReason::UnknownExport);
        };
        self.output.put_control(&export.size_bytes.to_be_bytes());
        self.output
            .put_control(&self.transmission_flags(export).to_be_bytes());
        if !self.no_zeroes {
            self.output.put_control(&[0; EXPORT_NAME_PADDING_BYTES]);
        }
        self.open(export);
    }

    fn list(&mut self, data: &[u8], exports: &[Export]) {
        if !data.is_empty() {
            return self.option_error(option::LIST, option_reply::ERR_INVALID, "no data is expected");
        }
        for export in exports {
            let name = export.name.as_bytes();
            let count = (name.len() as u32).to_be_bytes();
            let parts: [&[u8]; 3] = [&count, name, export.description.as_bytes()];
            self.option_reply(option::LIST, option_reply::SERVER, &parts);
        }
        self.option_reply(option::LIST, option_reply::ACK, &[]);
    }

    /// `NBD_OPT_INFO` and `NBD_OPT_GO`. The block sizes are told whether asked for or not.
    fn info(&mut self, option: u32, data: &[u8], exports: &[Export]) {
        let Some((name, wanted)) = parse_info(data) else {
            return self.option_error(
                option,
                option_reply::ERR_INVALID,
                "the option's lengths do not add up",
            );
        };
        let Some(export) = find(exports, name) else {
            return self.option_error(option, option_reply::ERR_UNKNOWN, "no such export");
        };
        let asked = |kind: u16| wanted.chunks_exact(2).any(|bytes| u16_at(bytes, 0) == kind);
        let flags = self.transmission_flags(export).to_be_bytes();
        self.info_reply(option, info::EXPORT, &[&export.size_bytes.to_be_bytes(), &flags]);
        if asked(info::NAME) {
            self.info_reply(option, info::NAME, &[export.name.as_bytes()]);
        }
        if asked(info::DESCRIPTION) && !export.description.is_empty() {
            self.info_reply(option, info::DESCRIPTION, &[export.description.as_bytes()]);
        }
        let sizes = [SECTOR_BYTES as u32, PAGE_BYTES as u32, self.request_bytes_max].map(u32::to_be_bytes);
        self.info_reply(option, info::BLOCK_SIZE, &[&sizes[0], &sizes[1], &sizes[2]]);
        self.option_reply(option, option_reply::ACK, &[]);
        if option == option::GO {
            self.open(export);
        }
    }

    /// `NBD_OPT_LIST_META_CONTEXT` and `NBD_OPT_SET_META_CONTEXT`. Every attempt to set drops the earlier choice.
    fn meta_context(&mut self, option: u32, data: &[u8], exports: &[Export]) {
        let set = option == option::SET_META_CONTEXT;
        if set {
            self.context = None;
        }
        if !self.structured {
            return self.option_error(option, option_reply::ERR_INVALID, "structured replies come first");
        }
        let Some((name, queries)) = parse_meta_context(data) else {
            return self.option_error(
                option,
                option_reply::ERR_INVALID,
                "the option's data is malformed",
            );
        };
        let Some(export) = find(exports, name) else {
            return self.option_error(option, option_reply::ERR_UNKNOWN, "no such export");
        };
        let chosen = match queries {
            Queries::None => !set,
            Queries::Some { exact, wildcard } => exact || (wildcard && !set),
        };
        if chosen {
            let id = if set { CONTEXT_ID } else { 0 };
            self.option_reply(option, option_reply::META_CONTEXT, &[&id.to_be_bytes(), CONTEXT]);
        }
        if chosen && set {
            self.context = Some(export.volume);
        }
        self.option_reply(option, option_reply::ACK, &[]);
    }

    fn open(&mut self, export: &Export) {
        self.opened = Some(Opened {
            volume: export.volume,
            size_bytes: export.size_bytes,
            read_only: export.read_only,
            status: self.context == Some(export.volume),
        });
        self.option_data = Vec::new();
        self.phase = Phase::RequestHeader;
    }

    fn transmission_flags(&self, export: &Export) -> u16 {
        let mut flags = transmission::HAS_FLAGS | transmission::SEND_FLUSH | transmission::CAN_MULTI_CONN;
        flags |= if export.read_only {
            transmission::READ_ONLY
        } else {
            transmission::SEND_FUA
                | transmission::SEND_TRIM
                | transmission::SEND_WRITE_ZEROES
                | transmission::SEND_FAST_ZERO
        };
        if self.structured {
            flags |= transmission::SEND_DF;
        }
        flags
    }

    fn option_reply(&mut self, option: u32, kind: u32, parts: &[&[u8]]) {
        let length: usize = parts.iter().map(|part| part.len()).sum();
        self.output.put_control(&OPTION_REPLY_MAGIC.to_be_bytes());
        self.output.put_control(&option.to_be_bytes());
        self.output.put_control(&kind.to_be_bytes());
        self.output.put_control(&(length as u32).to_be_bytes());
        for part in parts {
            self.output.put_control(part);
        }
    }

    fn option_error(&mut self, option: u32, kind: u32, message: &str) {
        self.option_reply(option, kind, &[message.as_bytes()]);
    }

    fn info_reply(&mut self, option: u32, kind: u16, parts: &[&[u8]]) {
        let kind = kind.to_be_bytes();
        let mut all: [&[u8]; 4] = [&kind, &[], &[], &[]];
        all[1..=parts.len()].copy_from_slice(parts);
        self.option_reply(option, option_reply::INFO, &all);
    }
}

/// The export of a name; the empty name means the first one (proto.md: the default export).
fn find<'e>(exports: &'e [Export], name: &[u8]) -> Option<&'e Export> {
    let named = exports.iter().find(|export| export.name.as_bytes() == name);
    named.or_else(|| exports.first().filter(|_| name.is_empty()))
}

/// Name and wanted information types of `NBD_OPT_INFO` or `NBD_OPT_GO`, `None` if the lengths do not add up.
fn parse_info(data: &[u8]) -> Option<(&[u8], &[u8])> {
    let mut rest = data;
    let name = string(&mut rest)?;
    let count = usize::from(u16::from_be_bytes(*rest.first_chunk()?));
    let wanted = &rest[2..];
    (wanted.len() == 2 * count).then_some((name, wanted))
}

/// Contexts that the queries of a metadata option ask for.
enum Queries {
    /// There are no queries.
    None,
    /// The context itself, its whole namespace, both or neither.
    Some { exact: bool, wildcard: bool },
}

/// Export name and queries, `None` if malformed. A query has a namespace, a colon and a leaf (proto.md "Metadata
/// querying").
fn parse_meta_context(data: &[u8]) -> Option<(&[u8], Queries)> {
    let mut rest = data;
    let name = string(&mut rest)?;
    let count = u32::from_be_bytes(*rest.split_off(..4)?.first_chunk()?);
    let (mut exact, mut wildcard) = (false, false);
    for _ in 0..count {
        let query = string(&mut rest)?;
        if !query.contains(&b':') {
            return None;
        }
        exact |= query == CONTEXT;
        wildcard |= query == b"base:";
    }
    let queries = if count == 0 {
        Queries::None
    } else {
        Queries::Some { exact, wildcard }
    };
    rest.is_empty().then_some((name, queries))
}

/// Takes a counted string off the front.
fn string<'d>(rest: &mut &'d [u8]) -> Option<&'d [u8]> {
    let count = u32::from_be_bytes(*rest.split_off(..4)?.first_chunk()?);
    rest.split_off(..count as usize)
}
