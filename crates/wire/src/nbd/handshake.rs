//! The handshake: fixed newstyle negotiation and its options (proto.md "Fixed newstyle negotiation").
//!
//! Control path: it may allocate, within bounds. Options whose data is longer than [`OPTION_BYTES_MAX`] are drained
//! and refused; while more than [`CONTROL_BYTES_MAX`] of answers are unsent, no further option is taken.

use std::sync::Arc;

use base::VolumeId;
use base::limits::{PAGE_BYTES, SECTOR_BYTES};

use super::input::{CloseReason, Flow, Form, Gather, Opened};
use super::output::{CONTEXT_ID, Output};
use super::proto::{
    CLIENT_FLAGS_BYTES, EXPORT_NAME_PADDING_BYTES, OPTION_HEADER_BYTES, OPTION_MAGIC, STRING_BYTES_MAX,
    handshake_flags, info, option, option_reply, transmission_flags as transmission, u16_at, u32_at, u64_at,
};
use super::whereabouts::Whereabouts;
use crate::session::Export;

/// Longest option data that is looked at; longer is answered with `NBD_REP_ERR_TOO_BIG`. Enough for a name, a query
/// and 4096 information types, each as long as the protocol lets them be.
const OPTION_BYTES_MAX: u32 = 4 * STRING_BYTES_MAX as u32;
/// Unsent answers beyond which the client has to read before it may ask on: a client cannot make the server keep a
/// thousand listings.
const CONTROL_BYTES_MAX: u64 = 64 << 10;
/// The metadata context (proto.md "Metadata querying").
const CONTEXT: &[u8] = b"base:allocation";

/// Meaning of the client's next bytes.
#[derive(Clone, Copy, Debug)]
enum Phase {
    ClientFlags,
    OptionHeader,
    OptionData {
        option: u32,
        length: usize,
    },
    /// Data of an option that is too big.
    OptionSkip {
        option: u32,
        left: u32,
    },
}

/// The agreement so far, and the option that comes in.
pub(super) struct Handshake {
    /// As they were when the connection came.
    exports: Vec<Export>,
    /// Largest request accepted, as announced.
    request_bytes_max: u32,
    phase: Phase,
    header: Gather<OPTION_HEADER_BYTES>,
    option_data: Vec<u8>,
    no_zeroes: bool,
    form: Form,
    /// The volume for which `base:allocation` was chosen last.
    context: Option<VolumeId>,
    /// Volumes that other servers serve, if there are others.
    pub others: Option<Arc<dyn Whereabouts>>,
    /// Its generation when a client's volume was looked for there last.
    seen: Option<u64>,
    /// The server stops.
    pub stopping: bool,
    /// The export that the client opened: the handshake is over, requests follow.
    pub opened: Option<Opened>,
}

impl Handshake {
    pub fn new(exports: Vec<Export>, request_bytes_max: u32) -> Self {
        Self {
            exports,
            request_bytes_max,
            phase: Phase::ClientFlags,
            header: Gather::new(),
            option_data: Vec::new(),
            no_zeroes: false,
            form: Form::Simple,
            context: None,
            others: None,
            seen: None,
            stopping: false,
            opened: None,
        }
    }

    /// One step with the bytes at hand: how many it took and how to go on.
    pub fn step(&mut self, bytes: &[u8], output: &mut Output) -> (usize, Flow) {
        match self.phase {
            Phase::ClientFlags => match self.header.fill(bytes, CLIENT_FLAGS_BYTES) {
                (step, None) => (step, Flow::Starved),
                (step, Some(flags)) => (step, self.client_flags(u32_at(&flags, 0))),
            },
            Phase::OptionHeader => match self.header.fill(bytes, OPTION_HEADER_BYTES) {
                (step, None) => (step, Flow::Starved),
                (step, Some(header)) => (step, self.option_header(&header, output)),
            },
            Phase::OptionData { option, length } => {
                let step = bytes.len().min(length - self.option_data.len());
                self.option_data.extend_from_slice(&bytes[..step]);
                if self.option_data.len() < length {
                    return (step, Flow::Starved);
                }
                self.phase = Phase::OptionHeader;
                let data = core::mem::take(&mut self.option_data);
                let exports = core::mem::take(&mut self.exports);
                let flow = self.option(option, &data, &exports, output);
                if self.opened.is_none() {
                    self.exports = exports;
                }
                (step, flow)
            }
            Phase::OptionSkip { option, left } => self.option_skip(bytes, option, left, output),
        }
    }

    /// The client's flags. A client that does not confirm the fixed negotiation is served all the same.
    fn client_flags(&mut self, flags: u32) -> Flow {
        self.header.clear();
        if flags & !u32::from(handshake_flags::ALL) != 0 {
            return Flow::Close(CloseReason::ClientFlags);
        }
        self.no_zeroes = flags & u32::from(handshake_flags::NO_ZEROES) != 0;
        self.phase = Phase::OptionHeader;
        Flow::Again
    }

    fn option_header(&mut self, header: &[u8], output: &Output) -> Flow {
        if output.pending_bytes() > CONTROL_BYTES_MAX {
            return Flow::Blocked;
        }
        self.header.clear();
        if u64_at(header, 0) != OPTION_MAGIC {
            return Flow::Close(CloseReason::Magic);
        }
        let (option, length) = (u32_at(header, 8), u32_at(header, 12));
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

    fn option_skip(&mut self, bytes: &[u8], option: u32, left: u32, output: &mut Output) -> (usize, Flow) {
        if option == option::EXPORT_NAME {
            return (0, Flow::Close(CloseReason::UnknownExport));
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
        output.option_error(option, option_reply::ERR_TOO_BIG, "the option is too long");
        (step, Flow::Again)
    }

    fn option(&mut self, option: u32, data: &[u8], exports: &[Export], output: &mut Output) -> Flow {
        match option {
            option::ABORT => {
                output.option_reply(option, option_reply::ACK, &[]);
                return Flow::Close(CloseReason::Aborted);
            }
            option::EXPORT_NAME => return self.export_name(data, exports, output),
            _ if self.stopping => {
                output.option_error(option, option_reply::ERR_SHUTDOWN, "the server is stopping");
            }
            option::LIST => list(data, exports, output),
            option::INFO | option::GO => return self.info(option, data, exports, output),
            option::STRUCTURED_REPLY | option::EXTENDED_HEADERS if !data.is_empty() => {
                output.option_error(option, option_reply::ERR_INVALID, "no data is expected");
            }
            option::STRUCTURED_REPLY if self.form == Form::Extended => {
                let why = "extended headers were agreed on";
                output.option_error(option, option_reply::ERR_EXT_HEADER_REQD, why);
            }
            option::STRUCTURED_REPLY => {
                self.form = Form::Structured;
                output.option_reply(option, option_reply::ACK, &[]);
            }
            option::EXTENDED_HEADERS => {
                self.form = Form::Extended;
                output.option_reply(option, option_reply::ACK, &[]);
            }
            option::LIST_META_CONTEXT | option::SET_META_CONTEXT => {
                self.meta_context(option, data, exports, output);
            }
            _ => output.option_error(option, option_reply::ERR_UNSUP, "the option is not supported"),
        }
        Flow::Again
    }

    fn export_name(&mut self, name: &[u8], exports: &[Export], output: &mut Output) -> Flow {
        // Extended headers bar this option.
        let may_open = !self.stopping && self.form != Form::Extended;
        let Some(export) = self.find(exports, name).filter(|_| may_open) else {
            return Flow::Close(CloseReason::UnknownExport);
        };
        output.put_control(&export.size_bytes.to_be_bytes());
        output.put_control(&self.transmission_flags(export).to_be_bytes());
        if !self.no_zeroes {
            output.put_control(&[0; EXPORT_NAME_PADDING_BYTES]);
        }
        self.open(export)
    }

    /// `NBD_OPT_INFO` and `NBD_OPT_GO`. The block sizes are told whether asked for or not.
    fn info(&mut self, option: u32, data: &[u8], exports: &[Export], output: &mut Output) -> Flow {
        let Some((name, wanted)) = parse_info(data) else {
            let why = "the option's lengths do not add up";
            output.option_error(option, option_reply::ERR_INVALID, why);
            return Flow::Again;
        };
        let Some(export) = self.find(exports, name) else {
            self.no_export(option, name, output);
            return Flow::Again;
        };
        let asked = |kind: u16| wanted.chunks_exact(2).any(|bytes| u16_at(bytes, 0) == kind);
        let flags = self.transmission_flags(export).to_be_bytes();
        output.info_reply(option, info::EXPORT, &[&export.size_bytes.to_be_bytes(), &flags]);
        if asked(info::NAME) {
            output.info_reply(option, info::NAME, &[export.name.as_bytes()]);
        }
        if asked(info::DESCRIPTION) && !export.description.is_empty() {
            output.info_reply(option, info::DESCRIPTION, &[export.description.as_bytes()]);
        }
        let sizes = [SECTOR_BYTES as u32, PAGE_BYTES as u32, self.request_bytes_max].map(u32::to_be_bytes);
        output.info_reply(option, info::BLOCK_SIZE, &[&sizes[0], &sizes[1], &sizes[2]]);
        output.option_reply(option, option_reply::ACK, &[]);
        if option == option::GO {
            return self.open(export);
        }
        Flow::Again
    }

    /// `NBD_OPT_LIST_META_CONTEXT` and `NBD_OPT_SET_META_CONTEXT`. Every attempt to set drops the earlier choice.
    fn meta_context(&mut self, option: u32, data: &[u8], exports: &[Export], output: &mut Output) {
        let set = option == option::SET_META_CONTEXT;
        if set {
            self.context = None;
        }
        if self.form == Form::Simple {
            return output.option_error(option, option_reply::ERR_INVALID, "structured replies come first");
        }
        let Some((name, queries)) = parse_meta_context(data) else {
            return output.option_error(
                option,
                option_reply::ERR_INVALID,
                "the option's data is malformed",
            );
        };
        let Some(export) = self.find(exports, name) else {
            return self.no_export(option, name, output);
        };
        let chosen = match queries {
            Queries::None => !set,
            Queries::Some { exact, wildcard } => exact || (wildcard && !set),
        };
        if chosen {
            let id = if set { CONTEXT_ID } else { 0 };
            output.option_reply(option, option_reply::META_CONTEXT, &[&id.to_be_bytes(), CONTEXT]);
        }
        if chosen && set {
            self.context = Some(export.volume);
        }
        output.option_reply(option, option_reply::ACK, &[]);
    }

    /// The export of a name; the empty name means the first one (proto.md: the default export). An export that has left since
    /// the client came is none.
    fn find<'e>(&self, exports: &'e [Export], name: &[u8]) -> Option<&'e Export> {
        let named = exports.iter().find(|export| export.name.as_bytes() == name);
        let found = named.or_else(|| exports.first().filter(|_| name.is_empty()));
        let others = self.others.as_ref();
        found.filter(|export| others.is_none_or(|others| !others.is_elsewhere(export.volume)))
    }

    /// The answer for an export that is not there. The text is for people: clients show it, and no reply of the protocol
    /// sends them elsewhere.
    fn no_export(&self, option: u32, name: &[u8], output: &mut Output) {
        let name = core::str::from_utf8(name).ok();
        let direction = self.others.as_ref().zip(name);
        let direction = direction.and_then(|(others, name)| others.direction(name));
        let text = direction.as_deref().unwrap_or("no such export");
        output.option_error(option, option_reply::ERR_UNKNOWN, text);
    }

    /// True if another server serves this volume by now. The others are asked once after each change.
    pub fn has_left(&mut self, volume: VolumeId) -> bool {
        let Some(others) = &self.others else { return false };
        let generation = others.generation();
        self.seen.replace(generation) != Some(generation) && others.is_elsewhere(volume)
    }

    fn open(&mut self, export: &Export) -> Flow {
        self.opened = Some(Opened {
            volume: export.volume,
            size_bytes: export.size_bytes,
            read_only: export.read_only,
            form: self.form,
            status: self.context == Some(export.volume),
        });
        Flow::Again
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
        if self.form != Form::Simple {
            flags |= transmission::SEND_DF;
        }
        flags
    }
}

/// `NBD_OPT_LIST`.
fn list(data: &[u8], exports: &[Export], output: &mut Output) {
    if !data.is_empty() {
        return output.option_error(option::LIST, option_reply::ERR_INVALID, "no data is expected");
    }
    for export in exports {
        let name = export.name.as_bytes();
        let count = (name.len() as u32).to_be_bytes();
        let parts: [&[u8]; 3] = [&count, name, export.description.as_bytes()];
        output.option_reply(option::LIST, option_reply::SERVER, &parts);
    }
    output.option_reply(option::LIST, option_reply::ACK, &[]);
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
