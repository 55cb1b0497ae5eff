// What Node's programs do with files that they want to keep. A load notes what is durable, in the main thread and in a worker.
'use strict';
const fs = require('fs');
const path = require('path');
const child = require('child_process');
const { pipeline } = require('stream/promises');
const { Readable } = require('stream');
const { Worker, isMainThread, workerData } = require('worker_threads');

const record = (number) => `${number}:${'n'.repeat((number * 17) % 1800)}\n`;

function syncDirectory(directory) {
    const handle = fs.openSync(directory, 'r');
    fs.fsyncSync(handle);
    fs.closeSync(handle);
}

async function keep(directory, note, which, first) {
    const notes = fs.openSync(note, 'a');
    const file = await fs.promises.open(path.join(directory, `journal${which}.log`), 'a');
    // What a crash left by half at the end becomes a line of its own: the next record would be part of it.
    await file.appendFile('\n');
    syncDirectory(directory);
    for (let number = first; ; number++) {
        await file.appendFile(record(number));
        await (number % 2 ? file.sync() : file.datasync());
        if (number % 5 === 0) {
            const next = path.join(directory, `state${which}.next`);
            const state = await fs.promises.open(next, 'w');
            await state.writeFile(record(number));
            await state.sync();
            await state.close();
            await fs.promises.rename(next, path.join(directory, `state${which}.json`));
            syncDirectory(directory);
        }
        fs.writeSync(notes, `${which} ${number}\n`);
    }
}

function load(directory, note, first) {
    new Worker(__filename, { workerData: { directory, note, first: Number(first) } });
    return keep(directory, note, 0, Number(first));
}

function check(directory, lines) {
    const found = [0, 1].map((which) => {
        const name = path.join(directory, `journal${which}.log`);
        return new Set(fs.existsSync(name) ? fs.readFileSync(name, 'latin1').split('\n') : []);
    });
    const newest = [-1, -1];
    const lost = [];
    for (const line of fs.readFileSync(lines, 'utf8').split('\n').filter(Boolean)) {
        const [which, number] = line.split(' ').map(Number);
        if (!found[which].has(record(number).trimEnd())) lost.push(line);
        if (number % 5 === 0) newest[which] = Math.max(newest[which], number);
    }
    newest.forEach((number, which) => {
        if (number < 0) return;
        const state = fs.readFileSync(path.join(directory, `state${which}.json`), 'latin1');
        const there = parseInt(state, 10);
        if (there < number || state !== record(there)) lost.push(`state${which} of ${number} has ${there}`);
    });
    if (lost.length) {
        console.log(`${lost.length} acknowledged are lost: ${lost.slice(0, 5)}`);
        process.exit(1);
    }
}

function callbacks(directory) {
    const handle = fs.openSync(path.join(directory, 'sync.log'), 'w+');
    for (let number = 0; number < 200; number++) {
        fs.writeSync(handle, record(number), number % 3 ? null : (number * 997) % 80000);
        if (number % 20 === 0) fs.fsyncSync(handle);
        if (number % 50 === 49) fs.ftruncateSync(handle, number * 1000);
    }
    fs.writevSync(handle, [Buffer.from('one'), Buffer.from('two')]);
    fs.fdatasyncSync(handle);
    fs.closeSync(handle);
    fs.writeFileSync(path.join(directory, 'flushed.json'), JSON.stringify({ a: 1 }), { flush: true });
    fs.appendFileSync(path.join(directory, 'flushed.json'), '\n');
}

async function promises(directory) {
    const written = [];
    for (let number = 0; number < 40; number++) {
        written.push((async () => {
            const file = await fs.promises.open(path.join(directory, `promise${number}.json`), 'w');
            await file.write(record(number));
            await file.sync();
            await file.truncate(number * 10);
            await file.close();
        })());
    }
    await Promise.all(written);
    await fs.promises.copyFile(path.join(directory, 'sync.log'), path.join(directory, 'copied.log'));
    await fs.promises.cp(directory, directory + '/../copied', { recursive: true });
    await fs.promises.rename(directory + '/../copied', path.join(directory, 'copied'));
    await fs.promises.rm(path.join(directory, 'copied', 'sync.log'));
}

async function streams(directory) {
    const parts = function* () { for (let number = 0; number < 500; number++) yield record(number); };
    const to = fs.createWriteStream(path.join(directory, 'stream.log'), { flush: true });
    await pipeline(Readable.from(parts()), to);
    await pipeline(fs.createReadStream(path.join(directory, 'stream.log')), fs.createWriteStream(path.join(directory, 'piped.log')));
    const position = fs.createWriteStream(path.join(directory, 'piped.log'), { flags: 'r+', start: 5000 });
    await pipeline(Readable.from(['in the middle']), position);
}

function children(directory) {
    const out = fs.openSync(path.join(directory, 'child.log'), 'a');
    fs.writeSync(out, 'parent\n');
    const ended = child.spawnSync('sh', ['-c', 'echo child; echo error >&2'], { stdio: ['ignore', out, out] });
    fs.writeSync(out, 'parent again\n');
    fs.fsyncSync(out);
    fs.closeSync(out);
    console.log('child', ended.status, child.execFileSync('node', ['-e', 'console.log(6 * 7)']).toString().trim());
}

async function script(directory) {
    fs.mkdirSync(directory);
    callbacks(directory);
    await promises(directory);
    await streams(directory);
    children(directory);
    await new Promise((resolve, reject) => {
        new Worker(__filename, { workerData: { directory } }).on('exit', resolve).on('error', reject);
    });
    console.log(fs.readdirSync(directory).length);
}

if (isMainThread) {
    const [name, ...words] = process.argv.slice(2);
    Promise.resolve({ load, check, script }[name](...words)).catch((error) => { console.error(error); process.exit(1); });
} else if (workerData.note) {
    keep(workerData.directory, workerData.note, 1, workerData.first);
} else {
    for (let number = 0; number < 20; number++) fs.writeFileSync(path.join(workerData.directory, `worker${number}.json`), record(number));
}
