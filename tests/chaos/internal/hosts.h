// Hosts that are network namespaces of this machine, joined by a bridge in a namespace of its own.
// The namespaces end with this object, and with this process. Needs root and iproute2.
//
//   10.77.0.1     10.77.0.2
//   host 0 ─┐   ┌─ host 1
//           bridge            cut(1) takes host 1's port from the bridge
#pragma once

#include <string>
#include <vector>

#include "weft/launch/process.h"

namespace weft::chaos::internal {

class Hosts {
 public:
  // Throws Error(kUnavailable) with the reason.
  explicit Hosts(int count);

  int count() const { return static_cast<int>(hosts_.size()); }
  std::string address(int host) const;
  // Moves the calling process into the namespace: for the child, before it runs its program.
  void enter(int host) const;
  // Every packet to and from the host is lost, without a word to either side.
  void cut(int host);
  void join(int host);
  // True if the host gets no answer from another one.
  bool is_cut(int host) const;

 private:
  struct Namespace {
    launch::Process holder;
    launch::Fd fd;
  };
  static Namespace make_namespace();
  // Runs a command of iproute2 in a namespace. Throws Error(kUnavailable) if it fails.
  static void command(const Namespace& where, const std::vector<std::string>& words);
  static int status(const Namespace& where, const std::vector<std::string>& words);

  Namespace bridge_;
  std::vector<Namespace> hosts_;
};

}  // namespace weft::chaos::internal
