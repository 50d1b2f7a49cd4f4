// Shell completion and the manual page, made from the command line's own help.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace weft::cli {

// A completion script for bash, zsh or fish. Throws Error(kInvalidArgument) for another `shell`.
std::string completion_script(const CLI::App& app, const std::string& shell);

// weft(1), in roff.
std::string manual_page(const CLI::App& app, const std::string& version);

}  // namespace weft::cli
