//! What threads do in the checks, for each tree of sources.

macro_rules! scenarios {
    () => {
        use shuttle::thread;
        use std::sync::Arc;
        use $crate::{Load, Memory, image, options, spilled};

        /// Threads that append and wait, beside the area's own thread; all of them end, and so does the area.
        pub(crate) fn writers(load: Load) {
            let (medium, log) = image(load.free_segments);
            let mut medium = medium.clone();
            let (engine, _) = store::Engine::open(&mut medium, options(load.in_flight)).expect("it opens");
            let memory = Memory::new(medium, load.fails_after);
            let shared = Arc::new(shared::Shared::new(memory, engine));
            let runner = Arc::clone(&shared);
            let background = thread::spawn(move || runner.run());
            let write = move |shared: &shared::Shared| -> Result<(), area::AreaError> {
                let mut floor = 0;
                for _ in 0..load.rounds {
                    let data = vec![1; load.bytes];
                    let ops = [
                        store::Op::Append {
                            log: *log,
                            data: &data,
                        },
                        store::Op::Trim { log: *log, floor },
                    ];
                    let (receipt, guard) = shared.submit(|engine| engine.submit(&ops))?;
                    floor = receipt.positions[0];
                    match load.waits {
                        true => shared.wait(guard, receipt.ticket)?,
                        false => shared.start(guard, receipt.ticket),
                    }
                }
                if load.waits {
                    return Ok(());
                }
                let guard = shared.lock();
                let newest = guard.engine.newest();
                shared.wait(guard, newest)
            };
            let writers: Vec<_> = (0..load.threads)
                .map(|_| {
                    let shared = Arc::clone(&shared);
                    thread::spawn(move || write(&shared))
                })
                .collect();
            for writer in writers {
                let outcome = writer.join().expect("no panic");
                assert_eq!(outcome.is_err(), load.fails_after.is_some());
            }
            shared.close();
            background.join().expect("no panic");
            let guard = shared.lock();
            assert!(load.fails_after.is_some() || guard.engine.durable() == guard.engine.newest());
        }

        /// Threads that put until memory has left for tables several times, beside the area's threads; all of them end.
        #[allow(dead_code, reason = "one tree has it")]
        pub(crate) fn spillers(fails_after: Option<usize>) {
            let (medium, map) = spilled();
            let mut medium = medium.clone();
            let options = $crate::spilling();
            let (engine, _) = store::Engine::open(&mut medium, options).expect("it opens");
            let memory = Memory::new(medium, fails_after);
            let shared = Arc::new(shared::Shared::new(memory, engine));
            let (runner, worker) = (Arc::clone(&shared), Arc::clone(&shared));
            let background = thread::spawn(move || runner.run());
            let tables = thread::spawn(move || worker.run_jobs(|_, _| {}));
            let write = move |shared: &shared::Shared, thread: u8| -> Result<(), area::AreaError> {
                for round in 0..8 {
                    let (key, data) = ([thread, round], [round; 60]);
                    let op = store::Op::Put {
                        map: *map,
                        key: &key,
                        data: &data,
                    };
                    let (receipt, guard) = shared.submit(|engine| engine.submit(&[op]))?;
                    shared.wait(guard, receipt.ticket)?;
                }
                Ok(())
            };
            let writers: Vec<_> = (0..2)
                .map(|thread| {
                    let shared = Arc::clone(&shared);
                    thread::spawn(move || write(&shared, thread))
                })
                .collect();
            for writer in writers {
                let outcome = writer.join().expect("no panic");
                assert!(outcome.is_ok() || fails_after.is_some(), "{outcome:?}");
            }
            shared.close();
            background.join().expect("no panic");
            tables.join().expect("no panic");
        }
    };
}
