// Both ends of HTTP over Node's own module, on connections that are kept: `http.js server PORT DIR`
// serves files; `http.js client PORT SECONDS` gets them on several connections at once and compares
// every byte with `content` of services.py. It ends when it has got through ROUNDS on each, or, with
// more than zero seconds, after that time.
'use strict';

const crypto = require('crypto');
const fs = require('fs');
const http = require('http');
const path = require('path');

const CONNECTIONS = 8;
const ROUNDS = 150;
const SIZES = [1, 7, 100, 1024, 4096, 5000, 16384, 70000];

const [part, port, last] = process.argv.slice(2);

function content(size) {
  const block = crypto.createHash('sha256').update(String(size)).digest();
  return Buffer.alloc(size, block);
}

function serve() {
  const server = http.createServer((request, response) => {
    const page = fs.readFileSync(path.join(last, path.basename(request.url)));
    response.writeHead(200, { 'Content-Length': page.length });
    response.end(page);
  });
  server.keepAliveTimeout = 240_000;
  server.listen(Number(port), '127.0.0.1');
}

function get(agent, size) {
  return new Promise((resolve, reject) => {
    const request = http.get({ host: '127.0.0.1', port, path: `/${size}`, agent }, (response) => {
      const parts = [];
      response.on('data', (part) => parts.push(part));
      response.on('end', () => resolve(Buffer.concat(parts)));
      response.on('error', reject);
    });
    request.on('error', reject);
  });
}

async function talk(number, until) {
  const agent = new http.Agent({ keepAlive: true, maxSockets: 1 });
  for (let done = 0; done < ROUNDS || Date.now() < until; done++) {
    const size = SIZES[(number + done) % SIZES.length];
    const got = await get(agent, size);
    if (!got.equals(content(size))) {
      throw new Error(`${got.length} other bytes instead of ${size}`);
    }
  }
  agent.destroy();
}

async function ask() {
  const until = Date.now() + 1000 * Number(last);
  await Promise.all(Array.from({ length: CONNECTIONS }, (_, number) => talk(number, until)));
}

if (part === 'server') {
  serve();
} else {
  // A promise that fails ends the process with an error.
  ask();
}
