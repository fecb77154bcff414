// Serves stripe-stateful-mock on a free port of the loopback interface. Its own program would
// listen on every interface. Argument: the directory that holds node_modules.
const { createRequire } = require("node:module");
const { createExpressApp } = createRequire(process.argv[2] + "/")("stripe-stateful-mock");

const server = createExpressApp().listen(0, "127.0.0.1", () => {
  console.log(`listening on ${server.address().port}`);
});
