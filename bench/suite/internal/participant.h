// A participant of a bench: a peer program, or ranks of weft forked from this process. It reads
// commands and answers each with one line.
//
//   harness ── command line ──> stdin of the program, or of every rank
//           <── answer line ─── stdout of the program, or of rank 0
//
// A participant sleeps in the read while others are measured.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "bench/suite/internal/answer.h"
#include "weft/base/file.h"
#include "weft/launch/process.h"

namespace weft::cli::bench_internal {

// Thrown by every wait when a signal has arrived.
struct Interrupted {
  int signal;
};

// Blocks SIGINT and SIGTERM while it lives. A wait then ends by Interrupted, so that all started
// processes can be ended in order.
class Signals {
 public:
  Signals();
  ~Signals();
  Signals(const Signals&) = delete;
  Signals& operator=(const Signals&) = delete;

  // Waits for this time. Throws Interrupted when a signal arrives.
  void pause(std::chrono::milliseconds time) const;
  // Readable when a signal has arrived.
  int fd() const { return fd_.get(); }

 private:
  UniqueFd fd_;
};

class Participant {
 public:
  // argv[0] is looked up in PATH. `environment` (NAME=value) is added to that of this process.
  Participant(std::string name, const std::vector<std::string>& argv,
              const std::vector<std::string>& environment, const Signals& signals);
  // Forks `ranks` processes. Each runs serve(rank) with the stdin above; rank 0 also has the stdout
  // above.
  Participant(std::string name, int ranks, const std::function<int(int rank)>& serve,
              const Signals& signals);
  // Closes its stdin, and kills it after two seconds; after a failed or interrupted ask(), kills it
  // at once.
  ~Participant();
  Participant(const Participant&) = delete;
  Participant& operator=(const Participant&) = delete;

  const std::string& name() const { return name_; }
  // Sends a command and returns the answer. Throws Error: kInvalidArgument, with the participant's
  // message, if it answers an error; kTimeout; kPeerLost if it has ended; kCorrupt. After any error
  // but the first, the participant cannot be used any more. Throws Interrupted.
  Message ask(const std::string& command, std::chrono::milliseconds limit);
  // Returns the next line without sending a command.
  Message listen(std::chrono::milliseconds limit);

 private:
  void start(launch::ProcessOptions options, bool answers);
  std::string read_line(Deadline deadline);

  std::string name_;
  const Signals& signals_;
  UniqueFd answer_in_, answer_out_;
  std::vector<UniqueFd> commands_;
  std::vector<launch::Process> processes_;
  std::string pending_;  // bytes read after the last line
  bool usable_ = true;   // every answer has arrived
};

}  // namespace weft::cli::bench_internal
