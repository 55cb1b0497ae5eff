//! An independent model of the server's side of a conversation: given what the client said, is what it heard right?
//!
//! It knows the protocol, not the session: it walks input and output side by side, works out the exact error each
//! request deserves, and checks data by the stamps of the fuzzed disk. A connection that the server cut may end
//! anywhere; everything heard before must still be right.

use wire::Export;
use wire::nbd::CloseReason;
use wire::nbd::proto::{
    OPTION_HEADER_BYTES, OPTION_MAGIC, RequestHeader, chunk, command, option as opt, option_reply,
};

use super::support::{GREETING_BYTES, Reply, parse_option_reply, parse_reply};
use super::{Tally, stamp};

/// Longest option that is answered other than with "too big": the server's documented limit.
const OPTION_BYTES_MAX: usize = 16 << 10;

/// One finished conversation.
pub struct View<'v> {
    pub input: &'v [u8],
    pub output: &'v [u8],
    pub exports: &'v [Export],
    pub request_bytes_max: u32,
    pub closed: Option<CloseReason>,
    /// Offset, length and CRC32C of the writes that reached the gateway.
    pub writes: &'v [(u64, u32, u32)],
}

/// Agreements of the handshake.
#[derive(Default)]
struct Agreed {
    structured: bool,
    extended: bool,
    no_zeroes: bool,
    /// Export that the context was set for.
    context: Option<usize>,
}

/// How the walk through the handshake ended.
enum Outcome<'v> {
    /// With this export, in this many bytes of input.
    Started { export: &'v Export, status: bool },
    /// Without one.
    Ended,
}

/// A request of the client, whole with its payload.
struct Asked<'v> {
    header: RequestHeader,
    payload: &'v [u8],
    answered: bool,
    /// Data of a read that came.
    data_bytes: u64,
    /// Its payload is there.
    is_whole: bool,
}

/// Panics if the output is not right.
pub fn check(view: &View<'_>, tally: &mut Tally) {
    let cut = matches!(
        view.closed,
        Some(
            CloseReason::Magic
                | CloseReason::ClientFlags
                | CloseReason::UnknownExport
                | CloseReason::ReadFailed
                | CloseReason::Payload
        )
    );
    tally.cut += u64::from(cut);
    let (mut input, mut output) = (view.input, view.output);
    let Some(greeting) = output.split_off(..GREETING_BYTES) else {
        return assert!(cut, "the greeting is always sent");
    };
    assert_eq!(greeting, b"NBDMAGICIHAVEOPT\x00\x03");
    let mut agreed = Agreed::default();
    let outcome = handshake(view, &mut input, &mut output, &mut agreed, cut);
    match outcome {
        Outcome::Ended => {
            tally.handshakes += 1;
            assert!(view.writes.is_empty() || cut, "only an export is written to");
            assert!(output.is_empty() || cut, "nothing is said after the end");
        }
        Outcome::Started { export, status } => {
            tally.transmissions += 1;
            let judge = Judge {
                export,
                structured: agreed.structured,
                extended: agreed.extended,
                status,
                max: view.request_bytes_max,
            };
            transmission(view, input, output, &judge, cut, tally);
        }
    }
}

fn handshake<'v>(
    view: &View<'v>,
    input: &mut &'v [u8],
    output: &mut &[u8],
    agreed: &mut Agreed,
    cut: bool,
) -> Outcome<'v> {
    let Some(flags) = input.split_off(..4) else {
        return Outcome::Ended;
    };
    if flags[..3] != [0; 3] || flags[3] > 3 {
        assert_eq!(view.closed, Some(CloseReason::ClientFlags));
        return Outcome::Ended;
    }
    agreed.no_zeroes = flags[3] & 2 != 0;
    while let Some(header) = input.split_off(..OPTION_HEADER_BYTES) {
        if header[..8] != OPTION_MAGIC.to_be_bytes() {
            assert_eq!(view.closed, Some(CloseReason::Magic));
            return Outcome::Ended;
        }
        let (option, length) = (number(&header[8..12]) as u32, number(&header[12..16]) as usize);
        if option == opt::EXPORT_NAME && length > OPTION_BYTES_MAX {
            assert_eq!(view.closed, Some(CloseReason::UnknownExport));
            return Outcome::Ended;
        }
        let Some(data) = input.split_off(..length) else {
            return Outcome::Ended;
        };
        if option == opt::EXPORT_NAME {
            return export_name(view, data, output, agreed, cut);
        }
        let Some(last) = answers(option, data, view, output, agreed) else {
            assert!(cut, "every option is answered");
            return Outcome::Ended;
        };
        assert!(length <= OPTION_BYTES_MAX || last == option_reply::ERR_TOO_BIG);
        if option == opt::ABORT && last == option_reply::ACK {
            return Outcome::Ended;
        }
        if option == opt::GO && last == option_reply::ACK {
            let index = named(view.exports, counted(data)).expect("only what exists is opened");
            let export = &view.exports[index];
            let status = agreed
                .context
                .is_some_and(|set| view.exports[set].volume == export.volume);
            return Outcome::Started { export, status };
        }
    }
    Outcome::Ended
}

fn export_name<'v>(
    view: &View<'v>,
    name: &[u8],
    output: &mut &[u8],
    agreed: &Agreed,
    cut: bool,
) -> Outcome<'v> {
    let Some(index) = named(view.exports, name).filter(|_| !agreed.extended) else {
        assert_eq!(view.closed, Some(CloseReason::UnknownExport));
        return Outcome::Ended;
    };
    let export = &view.exports[index];
    let Some(reply) = output.split_off(..if agreed.no_zeroes { 10 } else { 134 }) else {
        assert!(cut, "the export is described");
        return Outcome::Ended;
    };
    assert_eq!(reply[..8], export.size_bytes.to_be_bytes());
    assert!(reply[10..].iter().all(|&byte| byte == 0));
    let status = agreed
        .context
        .is_some_and(|set| view.exports[set].volume == export.volume);
    Outcome::Started { export, status }
}

/// Takes the replies to one option; returns the last one's kind, `None` if they are not all there.
fn answers(
    option: u32,
    data: &[u8],
    view: &View<'_>,
    output: &mut &[u8],
    agreed: &mut Agreed,
) -> Option<u32> {
    let mut chosen = false;
    let last = loop {
        let reply = parse_option_reply(output)?;
        assert_eq!(reply.option, option, "replies are in order");
        let allowed = match option {
            opt::LIST => option_reply::SERVER,
            opt::INFO | opt::GO => option_reply::INFO,
            opt::LIST_META_CONTEXT | opt::SET_META_CONTEXT => option_reply::META_CONTEXT,
            _ => option_reply::ACK,
        };
        if reply.kind == option_reply::ACK || reply.kind >> 31 == 1 {
            break reply.kind;
        }
        assert_eq!(reply.kind, allowed);
        chosen = true;
    };
    match option {
        opt::STRUCTURED_REPLY if agreed.extended => assert_ne!(last, option_reply::ACK),
        opt::STRUCTURED_REPLY if last == option_reply::ACK => agreed.structured = true,
        opt::EXTENDED_HEADERS if last == option_reply::ACK => agreed.extended = true,
        opt::SET_META_CONTEXT if data.len() <= OPTION_BYTES_MAX => {
            agreed.context = named(view.exports, counted(data)).filter(|_| chosen);
        }
        _ => {}
    }
    Some(last)
}

/// The server's facts for telling good requests from bad ones.
struct Judge<'v> {
    export: &'v Export,
    structured: bool,
    extended: bool,
    status: bool,
    max: u32,
}

impl Judge<'_> {
    /// The error a request deserves by itself.
    fn error(&self, asked: &RequestHeader) -> Option<u32> {
        const EPERM: u32 = 1;
        const EINVAL: u32 = 22;
        const ENOSPC: u32 = 28;
        const ENOTSUP: u32 = 95;
        let (offset, length) = (asked.offset, asked.length);
        let allowed = match asked.command {
            command::READ if self.structured || self.extended => 1 | 4,
            command::READ | command::WRITE | command::FLUSH | command::TRIM => 1,
            command::WRITE_ZEROES => 1 | 2 | 16,
            command::BLOCK_STATUS if self.status => 1 | 8,
            _ => return Some(EINVAL),
        };
        let changes = matches!(
            asked.command,
            command::WRITE | command::TRIM | command::WRITE_ZEROES
        );
        let payload = matches!(asked.command, command::READ | command::WRITE);
        let outside = u128::from(offset) + u128::from(length) > u128::from(self.export.size_bytes);
        let is_write = asked.command == command::WRITE;
        if asked.flags & !allowed != 0 || asked.has_payload != is_write {
            Some(EINVAL)
        } else if changes && self.export.read_only {
            Some(EPERM)
        } else if asked.command == command::FLUSH {
            (offset != 0 || length != 0).then_some(EINVAL)
        } else if length == 0 || (offset | length) % 512 != 0 || (payload && length > u64::from(self.max)) {
            Some(EINVAL)
        } else if outside {
            let write = matches!(asked.command, command::WRITE | command::WRITE_ZEROES);
            Some(if write { ENOSPC } else { EINVAL })
        } else {
            (asked.flags & 16 != 0 && (offset | length) % 4096 != 0).then_some(ENOTSUP)
        }
    }
}

fn transmission(
    view: &View<'_>,
    input: &[u8],
    mut output: &[u8],
    judge: &Judge<'_>,
    cut: bool,
    tally: &mut Tally,
) {
    let mut asked = requests(view, input, judge.extended);
    let accepted = asked
        .iter()
        .filter(|one| one.header.command == command::WRITE && judge.error(&one.header).is_none());
    let mut writes = view.writes.iter().peekable();
    for one in accepted {
        // Whole, or in parts: the next ones do not come after one failed.
        let mut at = 0;
        while let Some(&(offset, length, crc)) = writes.next_if(|&&(offset, length, crc)| {
            let end = at + length as usize;
            let is_next = offset == one.header.offset + at as u64 && length > 0;
            is_next
                && one
                    .payload
                    .get(at..end)
                    .is_some_and(|part| crc == crc32c::crc32c(part))
        }) {
            let _ = (offset, crc);
            at += length as usize;
        }
        assert!(
            at > 0 || cut || !one.is_whole,
            "every good write reaches the gateway"
        );
    }
    assert!(
        writes.next().is_none(),
        "writes reach the gateway as they are and in order"
    );
    asked.retain(|one| one.is_whole);
    while !output.is_empty() {
        let Some(reply) = parse_reply(&mut output) else {
            return assert!(cut, "the output is made of replies");
        };
        let cookie = match &reply {
            Reply::Simple { cookie, .. } | Reply::Chunk { cookie, .. } | Reply::Extended { cookie, .. } => {
                *cookie
            }
        };
        let mut waiting = asked
            .iter_mut()
            .filter(|one| one.header.cookie == cookie && !one.answered);
        let one = waiting.next().expect("a reply belongs to a request");
        if waiting.any(|other| other.header != one.header) {
            // The client gave one cookie to two different requests: which one this answers cannot be told.
            return;
        }
        one.answered = match &reply {
            Reply::Simple { .. } => true,
            Reply::Chunk { flags, .. } | Reply::Extended { flags, .. } => *flags == chunk::DONE,
        };
        if !answer(one, &reply, judge, &mut output, tally) {
            return assert!(cut, "the data of a read is whole");
        }
    }
    assert!(
        cut || asked.iter().all(|one| one.answered),
        "every request is answered"
    );
}

/// The whole requests of the input, up to a disconnect or a wrong magic.
fn requests<'v>(view: &View<'_>, mut input: &'v [u8], extended: bool) -> Vec<Asked<'v>> {
    // A read that fails in the middle ends the connection before what comes behind it.
    let ends_with = |reason| view.closed == Some(reason) || view.closed == Some(CloseReason::ReadFailed);
    let mut asked = Vec::new();
    while let Some(header) = input.split_off(..RequestHeader::bytes(extended)) {
        let Some(header) = RequestHeader::parse(header, extended) else {
            assert!(ends_with(CloseReason::Magic));
            break;
        };
        if header.command == command::DISC {
            assert!(ends_with(CloseReason::Disconnected));
            break;
        }
        let payload_bytes = header.payload_bytes() as usize;
        if payload_bytes > u32::MAX as usize {
            assert!(ends_with(CloseReason::Payload));
            break;
        }
        let is_whole = input.len() >= payload_bytes;
        let payload = input.split_off(..payload_bytes.min(input.len()));
        asked.push(Asked {
            header,
            payload: payload.expect("there are so many bytes"),
            is_whole,
            answered: false,
            data_bytes: 0,
        });
        if !is_whole {
            break;
        }
    }
    asked
}

const EIO: u32 = 5;

/// Checks one reply; false if its data is cut off.
fn answer(
    one: &mut Asked<'_>,
    reply: &Reply,
    judge: &Judge<'_>,
    output: &mut &[u8],
    tally: &mut Tally,
) -> bool {
    let asked = one.header;
    let has_data = matches!(asked.command, command::READ | command::BLOCK_STATUS);
    let chunked = judge.extended || judge.structured && has_data;
    let error = match reply {
        Reply::Simple { error, .. } => {
            assert!(!chunked, "reads and statuses are structured");
            *error
        }
        Reply::Chunk {
            flags, kind, data, ..
        } => {
            assert!(chunked && !judge.extended);
            check_chunk(one, *flags, *kind, data, judge)
        }
        Reply::Extended {
            flags,
            kind,
            data,
            offset,
            ..
        } => {
            assert!(judge.extended && *offset == asked.offset);
            check_chunk(one, *flags, *kind, data, judge)
        }
    };
    if !one.answered {
        return true;
    }
    match judge.error(&asked) {
        Some(due) => assert_eq!(error, due, "{asked:?}"),
        None => assert!(error == 0 || error == EIO, "{asked:?} failed with {error}"),
    }
    *if error == 0 {
        &mut tally.served
    } else {
        &mut tally.refused
    } += 1;
    if error == 0 && asked.command == command::READ && !chunked {
        let Some(data) = output.split_off(..asked.length as usize) else {
            return false;
        };
        check_data(asked.offset, data);
    }
    true
}

/// Checks a chunk of an answer; the error that it tells, or 0.
fn check_chunk(one: &mut Asked<'_>, flags: u16, kind: u16, data: &[u8], judge: &Judge<'_>) -> u32 {
    let asked = one.header;
    assert!(flags == chunk::DONE || flags == 0 && kind == chunk::OFFSET_DATA);
    match kind {
        chunk::ERROR => {
            assert_eq!(data.len(), 6 + number(&data[4..6]) as usize);
            return number(&data[..4]) as u32;
        }
        chunk::OFFSET_DATA => check_part(one, data),
        chunk::NONE => {
            assert!(judge.extended && data.is_empty());
            assert!(!matches!(asked.command, command::READ | command::BLOCK_STATUS));
        }
        _ => {
            let due = match judge.extended {
                true => chunk::BLOCK_STATUS_EXT,
                false => chunk::BLOCK_STATUS,
            };
            assert_eq!((kind, asked.command), (due, command::BLOCK_STATUS));
            check_extents(&asked, data, judge.extended);
        }
    }
    0
}

/// Checks the data of a part of a read.
fn check_part(one: &mut Asked<'_>, data: &[u8]) {
    let asked = &one.header;
    assert_eq!(asked.command, command::READ);
    let offset = asked.offset + one.data_bytes;
    assert_eq!(data[..8], offset.to_be_bytes());
    check_data(offset, &data[8..]);
    one.data_bytes += data.len() as u64 - 8;
    assert!(
        one.data_bytes <= asked.length && (one.data_bytes == asked.length) == one.answered,
        "the parts of a read are its data"
    );
    assert!(
        one.answered || asked.flags & 4 == 0,
        "nor are there parts with DF"
    );
}

fn check_data(from: u64, data: &[u8]) {
    for (sector, bytes) in data.chunks_exact(512).enumerate() {
        assert_eq!(
            bytes[..8],
            stamp(from + sector as u64 * 512),
            "data comes from its place"
        );
    }
}

fn check_extents(asked: &RequestHeader, data: &[u8], extended: bool) {
    let (head, each) = if extended { (8, 16) } else { (4, 8) };
    let extents = &data[head..];
    assert!(!extents.is_empty() && extents.len().is_multiple_of(each));
    assert!(!extended || number(&data[4..8]) as usize == extents.len() / each);
    assert!(
        asked.flags & 8 == 0 || extents.len() == each,
        "one extent was asked for"
    );
    let mut lengths = extents
        .chunks_exact(each)
        .map(|extent| number(&extent[..each / 2]));
    assert!(lengths.clone().all(|length| length > 0) && lengths.clone().sum::<u64>() <= asked.length);
    let mut states = extents
        .chunks_exact(each)
        .map(|extent| number(&extent[each / 2..]));
    assert!(states.all(|state| state == 0 || state == 3) && lengths.all(|length| length % 512 == 0));
}

/// A counted string at the start of an option's data; empty if there is none, which is refused elsewhere.
fn counted(data: &[u8]) -> &[u8] {
    let count = data.get(..4).map_or(0, number) as usize;
    data.get(4..).and_then(|rest| rest.get(..count)).unwrap_or(&[])
}

fn named(exports: &[Export], name: &[u8]) -> Option<usize> {
    let index = exports.iter().position(|export| export.name.as_bytes() == name);
    index.or(if name.is_empty() { Some(0) } else { None })
}

fn number(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |sum, &byte| sum << 8 | u64::from(byte))
}
