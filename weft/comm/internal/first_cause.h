// The failure to report where several were seen: the first of those that are no consequence of
// another's. A group that was aborted (kAborted) has failed elsewhere; a peer that was lost may
// have ended for a reason that somebody else knows.
#pragma once

#include <exception>

#include "weft/base/error.h"

namespace weft::comm {

class FirstCause {
 public:
  // To be called in a handler: keeps the exception in flight where it tells more than what is kept.
  void note() {
    const int weight = weigh();
    if (kept_ && weight <= weight_) return;
    kept_ = std::current_exception();
    weight_ = weight;
  }

  // Throws what was kept, if anything.
  void rethrow() const {
    if (kept_) std::rethrow_exception(kept_);
  }

 private:
  static int weigh() {
    try {
      throw;
    } catch (const Error& error) {
      return error.code() == Errc::kAborted ? 0 : error.code() == Errc::kPeerLost ? 1 : 2;
    } catch (...) {
      return 2;
    }
  }

  std::exception_ptr kept_;
  int weight_ = 0;
};

}  // namespace weft::comm
