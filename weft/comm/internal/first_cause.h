// Chooses the failure to report if there were several: the first one that is not a consequence of
// another. An aborted group (kAborted) has failed elsewhere. A lost peer may have ended for a
// reason that another rank knows.
#pragma once

#include <exception>

#include "weft/base/error.h"

namespace weft::comm {

class FirstCause {
 public:
  // Called in a catch handler: keeps the current exception if it tells more than the kept one.
  void note() {
    const int weight = weigh();
    if (kept_ && weight <= weight_) return;
    kept_ = std::current_exception();
    weight_ = weight;
  }

  // Throws the kept exception, if any.
  void rethrow() const {
    if (kept_) std::rethrow_exception(kept_);
  }

 private:
  static int weigh() {
    try {
      throw;
    } catch (const Error& error) {
      return error.code() == Errc::kAborted ? 0 : error.code() == Errc::kPeerLost ? 1 : 2;
    } catch (...) {  // of libtorch or the program: a cause of its own
      return 2;
    }
  }

  std::exception_ptr kept_;
  int weight_ = 0;
};

}  // namespace weft::comm
