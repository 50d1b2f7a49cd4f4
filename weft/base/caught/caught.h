// Any caught exception as weft's Error.
#pragma once

#include <exception>
#include <string>
#include <utility>

#include "weft/base/error.h"

namespace weft {

// An Error as it is. Another exception becomes an Error with the code of code_of(), the text of
// describe(), and `context`.
Error as_error(const std::exception& caught, Error::Context context = {});

// As above, but calls take(const Error&). An Error is passed itself, with its type: a copy of it
// would be no more than an Error.
template <class Take>
auto take_as_error(const std::exception& caught, const Take& take, Error::Context context = {}) {
  const auto* const known = dynamic_cast<const Error*>(&caught);
  return known != nullptr ? take(*known) : take(as_error(caught, std::move(context)));
}

// The error to end a group with if `who` ("rank 2") leaves its work by this exception. An Error
// stays as it is, except kInvalidArgument: a mistake in a call of one rank is none of the others.
// That one and other exceptions, which are often the program's own and no bugs of weft, become
// kAborted, "rank 2 ended with: …".
Error as_ended(const std::exception& caught, const std::string& who);

// Runs `body`. If an exception other than an Error leaves it, such as missing memory, first calls
// tell(const Error&): the other ranks would wait for this one. Errors have been told already.
template <class Body, class Tell>
auto run_and_tell(const Body& body, const Tell& tell, Error::Context context = {})
    -> decltype(body()) {
  try {
    return body();
  } catch (const Error&) {
    throw;
  } catch (const std::exception& caught) {
    tell(as_error(caught, std::move(context)));
    throw;
  }
}

}  // namespace weft
