// The failure to report where several were seen: the first that is a cause, not the consequence (kAborted) of another's.
#pragma once

#include <exception>

#include "weft/base/error.h"

namespace weft::comm {

class FirstCause {
 public:
  // To be called in a handler: keeps the exception in flight where it tells more than what is kept.
  void note() {
    const bool follows = follows_another();
    if (kept_ && (!follows_ || follows)) return;
    kept_ = std::current_exception();
    follows_ = follows;
  }

  // Throws what was kept, if anything.
  void rethrow() const {
    if (kept_) std::rethrow_exception(kept_);
  }

 private:
  static bool follows_another() {
    try {
      throw;
    } catch (const Error& error) {
      return error.code() == Errc::kAborted;
    } catch (...) {
      return false;
    }
  }

  std::exception_ptr kept_;
  bool follows_ = false;
};

}  // namespace weft::comm
