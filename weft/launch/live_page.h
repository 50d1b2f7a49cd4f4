// The live page of a run (--http): a process beside the ranks that reads the run folder and serves
// it over HTTP. It holds no libtorch, and takes no time from a training step.
//
//   launcher ─ LivePage ──fork, exec──> weft_live ──> http://127.0.0.1:41234/
//                 │ socket                  ▲ "run FOLDER"
//              rank 0 ─ show_run() ─────────┘ through the inherited socket, WEFT_LIVE_FD
#pragma once

#include <optional>
#include <string>

#include "weft/launch/process.h"

namespace weft::launch {

// The process ends with this object, and with the process that made it.
class LivePage {
 public:
  // Starts weft_live, which lies beside this program, and logs the page's URL. `address`:
  // HOST:PORT; port 0 takes a free one. Call it before this process starts a thread. Throws
  // Error(kInvalidArgument), naming --http, for an address that is none or cannot be listened on,
  // also where weft was built without weft_live, and Error(kUnavailable) where it does not answer.
  explicit LivePage(const std::string& address);

  // Descriptor for show_run(), close-on-exec.
  int fd() const { return socket_.get(); }
  // Sets WEFT_LIVE_FD in this process, which is rank 0 itself.
  void use_here() const;

 private:
  Fd socket_;
  std::optional<Process> process_;
};

// Tells the live page of this job, if it has one, which run to show. Called on rank 0.
void show_run(const std::string& run_folder) noexcept;

}  // namespace weft::launch
