// Reads of blocks that other ranks hold, while those do something else.
//
//   client                                         server: a thread
//   {block, ranges} ──────────────────────────────> wait for any client
//   begin, bytes of each range ───────────────────> look into the block
//   the bytes, one range after the other <───────── send
//   {-1, 0}: this client reads no more
#pragma once

#include <ATen/core/Tensor.h>

#include <exception>
#include <map>
#include <thread>
#include <vector>

#include "weft/checkpoint/reader.h"
#include "weft/comm/group.h"

namespace weft::elastic::internal {

// Serves this rank's blocks until all clients have ended, in a thread of its own.
class PartServer {
 public:
  // `channel`: a group that only this exchange uses. `clients`: number of ranks that will ask.
  PartServer(Group channel, std::map<int, at::Tensor> blocks, int clients);
  // Aborts the channel if finish() was not called.
  ~PartServer();
  PartServer(const PartServer&) = delete;
  PartServer& operator=(const PartServer&) = delete;

  // Waits for the end of all clients. Throws as Group's operations do.
  void finish();

 private:
  void serve(int clients);
  void answer(int client, int block, std::int64_t ranges);

  const Group channel_;
  const std::map<int, at::Tensor> blocks_;
  std::exception_ptr failure_;  // the thread's, until it has ended
  std::thread thread_;          // last, since it uses the other members
};

// Reads ranges of a block of `server`. Throws as Group's operations do.
void fetch(const Group& channel, int server, int block,
           const std::vector<checkpoint::Reader::Range>& ranges, std::byte* out);
// Tells the server that this client has ended.
void end_fetches(const Group& channel, int server);

}  // namespace weft::elastic::internal
