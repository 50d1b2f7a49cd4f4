// A participant of a bench: a peer program, or ranks of weft forked from this process. It is told
// commands and answers each with one line.
//
//   harness ── command line ──> stdin of the program, or of every rank
//           <── answer line ─── stdout of the program, or of rank 0
//
// Whoever has no turn sleeps in that read.
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

// A signal came: what is thrown out of every wait.
struct Interrupted {
  int signal;
};

// Blocks SIGINT and SIGTERM while it lives, so that a wait can end by them and everything that was
// started be ended in order.
class Signals {
 public:
  Signals();
  ~Signals();
  Signals(const Signals&) = delete;
  Signals& operator=(const Signals&) = delete;

  // Waits so long, or until a signal has come: then throws Interrupted.
  void pause(std::chrono::milliseconds time) const;
  // Readable when a signal has come.
  int fd() const { return fd_.get(); }

 private:
  UniqueFd fd_;
};

class Participant {
 public:
  // argv[0] is looked up in PATH; `environment` (NAME=value) comes on top of ours.
  Participant(std::string name, const std::vector<std::string>& argv,
              const std::vector<std::string>& environment, const Signals& signals);
  // `ranks` forks of this process, each running serve(rank) with stdin and, for rank 0, stdout as
  // above.
  Participant(std::string name, int ranks, const std::function<int(int rank)>& serve,
              const Signals& signals);
  // Asks it to end and kills it two seconds later; after a failed or interrupted ask() at once.
  ~Participant();
  Participant(const Participant&) = delete;
  Participant& operator=(const Participant&) = delete;

  const std::string& name() const { return name_; }
  // Throws Error: kInvalidArgument with the participant's own words where it answers an error;
  // kTimeout; kPeerLost where it has ended; kCorrupt. After any but the first it can't be used any
  // more. Throws Interrupted.
  Message ask(const std::string& command, std::chrono::milliseconds limit);
  // The next line, without asking for it.
  Message listen(std::chrono::milliseconds limit);

 private:
  void start(launch::ProcessOptions options, bool answers);
  std::string read_line(Deadline deadline);

  std::string name_;
  const Signals& signals_;
  UniqueFd answer_in_, answer_out_;
  std::vector<UniqueFd> commands_;
  std::vector<launch::Process> processes_;
  std::string pending_;  // read beyond the last line
  bool usable_ = true;   // every answer has come
};

}  // namespace weft::cli::bench_internal
