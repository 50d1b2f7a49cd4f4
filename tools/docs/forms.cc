// Generates docs/parallelism.md: a section and a picture for each form of parallelism.
#include "tools/docs/document.h"
#include "tools/docs/internal/form_picture.h"
#include "tools/docs/internal/form_words.h"

namespace weft::docs {
namespace {

std::string picture_of(const internal::Form& form) {
  return std::string("pictures/parallel-") + form.name + ".svg";
}

std::string table() {
  std::string text = "\n| form | a rank holds | a rank sends in a step |\n| --- | --- | --- |\n";
  for (const internal::Form& form : internal::forms()) {
    text += std::string("| ") + form.title + " | " + form.holds + " | " + form.travels + " |\n";
  }
  return text;
}

std::string section(const internal::Form& form) {
  return std::string("\n## ") + form.title + "\n\n" + form.what +
         "\n\n![Parts of each rank: " + form.title + "](" + picture_of(form) + ")\n\n" + form.when +
         " Header: [" + form.header + "](../weft/" + form.header + "). Source: " + form.source +
         ".\n";
}

}  // namespace

std::vector<File> forms() {
  std::string page = internal::kForms + table();
  std::vector<File> files;
  for (const internal::Form& form : internal::forms()) {
    page += section(form);
    files.push_back({picture_of(form), internal::form_svg(form)});
  }
  files.push_back({"parallelism.md", page + internal::kAfterwardsForms});
  return files;
}

}  // namespace weft::docs
