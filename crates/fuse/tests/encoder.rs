//! Replies, listings and notifications: their bytes are the kernel's structures.

use fuse::abi::*;

#[test]
fn replies_are_the_structures_of_their_operations() {
    let mut place = [0xaa; 4096];
    let entry = EntryOut {
        nodeid: 7,
        attr: Attr {
            ino: 7,
            mode: 0o644,
            ..Attr::default()
        },
        ..EntryOut::default()
    };
    let opened = OpenOut {
        fh: 9,
        open_flags: fopen::NOFLUSH,
        backing_id: 0,
    };
    let bytes = Reply::Created(entry, opened)
        .encode(opcode::CREATE, &mut place)
        .expect("there is room");
    assert_eq!(bytes, EntryOut::BYTES + OpenOut::BYTES);
    assert_eq!(EntryOut::read(&place), Some(entry));
    assert_eq!(OpenOut::read(&place[EntryOut::BYTES..]), Some(opened));

    // One answer, and as many forms as the operation has.
    let copied = Reply::Copied(1 << 40);
    assert_eq!(copied.encode(opcode::COPY_FILE_RANGE_64, &mut place), Ok(8));
    assert_eq!(u64::read(&place), Some(1 << 40));
    assert_eq!(copied.encode(opcode::COPY_FILE_RANGE, &mut place), Ok(8));
    assert_eq!(
        WriteOut::read(&place),
        Some(WriteOut {
            size: u32::MAX,
            padding: 0
        })
    );

    let bytes = Reply::Ioctl(-3, b"data")
        .encode(opcode::IOCTL, &mut place)
        .expect("there is room");
    assert_eq!(bytes, IoctlOut::BYTES + 4);
    assert_eq!(IoctlOut::read(&place).map(|out| out.result), Some(-3));
    assert_eq!(&place[IoctlOut::BYTES..bytes], b"data");
    assert_eq!(
        Reply::Data(b"12345").encode(opcode::READ, &mut place[..4]),
        Err(ReplyTooLong)
    );
    assert_eq!(Reply::Empty.encode(opcode::UNLINK, &mut []), Ok(0));
    let statx = Reply::Statx(StatxOut::default()).encode(opcode::STATX, &mut place);
    assert_eq!(statx, Ok(StatxOut::BYTES));
}

#[test]
fn listings_have_entries_of_multiples_of_eight_until_there_is_no_room() {
    let mut place = [0xaa; 72];
    let mut list = Directory::new(&mut place);
    assert!(list.push(5, 1, 8, b"a"));
    assert!(list.push(6, 2, 4, b"12345678"));
    assert!(!list.push(7, 3, 8, b"b"), "only 8 bytes are left");
    assert_eq!(list.bytes(), 64);
    let first = Dirent {
        ino: 5,
        off: 1,
        namelen: 1,
        kind: 8,
    };
    assert_eq!(Dirent::read(&place), Some(first));
    assert_eq!(place[24..32], *b"a\0\0\0\0\0\0\0");
    assert_eq!(Dirent::read(&place[32..]).map(|entry| entry.namelen), Some(8));
    assert_eq!(place[56..64], *b"12345678");
    assert_eq!(place[64..], [0xaa; 8], "what has no entry is untouched");

    let mut place = [0xaa; 160];
    let entry = EntryOut {
        nodeid: 3,
        attr: Attr {
            ino: 5,
            ..Attr::default()
        },
        ..EntryOut::default()
    };
    let mut list = Directory::new(&mut place);
    assert!(list.push_plus(&entry, 1, 8, b"abc"));
    assert_eq!(list.bytes(), EntryOut::BYTES + 32);
    assert_eq!(EntryOut::read(&place), Some(entry));
    assert_eq!(
        Dirent::read(&place[EntryOut::BYTES..]).map(|entry| entry.ino),
        Some(5)
    );
    assert!(!Directory::new(&mut place[..159]).push_plus(&entry, 1, 8, b"abc"));
}

#[test]
fn notifications_say_how_long_they_are() {
    let name = &b"name"[..];
    let all = [
        (
            Notification::InvalInode {
                inode: 1,
                offset: -1,
                bytes: 0,
            },
            notify::INVAL_INODE,
            24,
            0,
        ),
        (
            Notification::InvalEntry { parent: 1, name },
            notify::INVAL_ENTRY,
            16,
            5,
        ),
        (
            Notification::ExpireEntry { parent: 1, name },
            notify::INVAL_ENTRY,
            16,
            5,
        ),
        (
            Notification::Delete {
                parent: 1,
                child: 2,
                name,
            },
            notify::DELETE,
            24,
            5,
        ),
        (
            Notification::Store {
                inode: 1,
                offset: 2,
                data: b"data!",
            },
            notify::STORE,
            24,
            5,
        ),
    ];
    for (notification, code, argument_bytes, rest) in all {
        let mut head = [0; NOTIFICATION_HEAD_BYTES_MAX];
        let (bytes, data, end) = notification.parts(&mut head);
        assert_eq!(
            (bytes, data.len() + end.len()),
            (OutHeader::BYTES + argument_bytes, rest)
        );
        let header = OutHeader {
            len: (bytes + rest) as u32,
            error: code as i32,
            unique: 0,
        };
        assert_eq!(OutHeader::read(&head), Some(header), "{notification:?}");
    }
}
