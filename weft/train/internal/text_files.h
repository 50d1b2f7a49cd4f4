// Finds the text files of data.file, and checks that they are text.
#pragma once

#include <string>
#include <vector>

namespace weft::train::internal {

// The text files of data.file = `path`: the file itself, or the files of the folder and of the
// folders in it, sorted by name. Links are followed. Each file occurs once. Names that begin with a
// dot are left out. Warns of text that may not be in UTF-8. Throws Error(kBadConfig) if there are
// none, for a link that leads nowhere, and for files that are no text
// (data/text/tokenize_file.h).
std::vector<std::string> text_files(const std::string& path);

}  // namespace weft::train::internal
