// A server of pages for `rsock compare`: PORT, BYTES of a page.
'use strict';

const http = require('http');

const [port, size] = process.argv.slice(2).map(Number);
const page = Buffer.alloc(size, 'x');
const server = http.createServer((request, response) => {
  response.writeHead(200, { 'Content-Type': 'text/plain', 'Content-Length': page.length });
  response.end(page);
});
server.keepAliveTimeout = 60_000;
server.listen(port, '127.0.0.1');
