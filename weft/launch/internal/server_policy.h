// What the launcher does about the end of a parameter server: a pure function.
#pragma once

#include <string>

#include "weft/launch/process.h"

namespace weft::launch::internal {

inline std::string server_name(int server) { return "server " + std::to_string(server); }

// A server is not started again after so many ends in a row, each within 10 s of its start.
constexpr int kMaxServerEnds = 5;

struct ServerEnd {
  ExitStatus status;
  bool ever_served = false;     // this process or an earlier one of this server
  bool has_copies = true;       // its shards have copies on other servers
  int in_a_row = 1;             // ends soon after a start, this one included
  bool other_given_up = false;  // another server is not started again
};

// kGiveUp: the job goes on with the remaining copies. kEndJob: values are lost, or will not serve.
enum class ServerAct { kStartAgain, kGiveUp, kEndJob };

inline ServerAct act_on(const ServerEnd& end) {
  // It would fail again, since it could not listen or its options are wrong.
  if (!end.ever_served && !end.status.signaled) return ServerAct::kEndJob;
  if (end.ever_served && !end.has_copies) return ServerAct::kEndJob;
  if (end.in_a_row < kMaxServerEnds) return ServerAct::kStartAgain;
  return end.has_copies && !end.other_given_up ? ServerAct::kGiveUp : ServerAct::kEndJob;
}

}  // namespace weft::launch::internal
