// A server in an event loop: `/N` answers with N bytes, as fast as they are taken.
"use strict";
const http = require("http");
const block = Buffer.alloc(65536, "x");

function answer(request, response) {
  let left = Number(request.url.slice(1)) || 0;
  response.writeHead(200, { "Content-Length": left });
  const more = () => {
    while (left > 0) {
      const part = left < block.length ? block.subarray(0, left) : block;
      left -= part.length;
      if (!response.write(part)) {
        response.once("drain", more);
        return;
      }
    }
    response.end();
  };
  more();
}

const server = http.createServer(answer);
server.keepAliveTimeout = 0;
server.listen(Number(process.argv[2]), "127.0.0.1", 4096);
